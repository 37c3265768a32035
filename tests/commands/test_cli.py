from __future__ import annotations

import errno
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from scalelab import __version__, cli, doctor
from scalelab.errors import LabError
from tasks.errors import TaskError


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
        assert f"usage: scalelab {name}" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"scalelab {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lst"], "scalelab: unknown subcommand 'lst': did you mean 'list'?; see scalelab --help"),
        ([], "scalelab: the following arguments are required"),
        (["show"], "scalelab show: the following arguments are required: EXPERIMENT; see scalelab show --help"),
        (["list", "--jsn"], "scalelab list: unrecognized arguments: --jsn; see scalelab list --help"),
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
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    entries = {entry["name"]: entry["description"] for entry in json.loads(child.stdout)["experiments"]}
    assert entries["quickstart"]
    assert child.stderr.strip() == "[]"


def test_python_m_works_and_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m scalelab show quickstart | head -1"
    child = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
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
    assert run("show", "quickstart", "--json", "--set", "OptimizerConfig.lr=1e999") == 0
    shown = json.loads(capsys.readouterr().out)
    bindings = {binding["key"]: binding for binding in shown["bindings"]}
    assert bindings["OptimizerConfig.lr"]["value"] == "inf"
    assert bindings["OptimizerConfig.lr"]["origin"] == "--set OptimizerConfig.lr=1e999"
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


def test_doctor_says_what_is_missing_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engines = (
        doctor.Engine(("numpy",), "import numpy"),
        doctor.Engine(("no-such-engine",), "import no_such_engine"),
        doctor.Engine(("scipy",), "import scipy; raise RuntimeError('broken build')"),
    )
    monkeypatch.setattr(doctor, "ENGINES", engines)
    monkeypatch.setattr(doctor, "_gpus", lambda: None)  # these two ask torch, which takes long to import
    monkeypatch.setattr(doctor, "_kernels", lambda: iter(()))
    assert run("doctor", "--json", "--out", str(tmp_path / "runs")) == 1
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["numpy"]["ok"]
    assert not found["no-such-engine"]["ok"]
    assert found["no-such-engine"]["fix"]
    assert found["scipy"]["detail"].endswith("RuntimeError: broken build")
    assert {"python", "gpus", "cores", "memory", "/dev/shm", "disk /tmp", "network", "sandbox"} <= found.keys()
    assert all(set(check) == {"name", "ok", "detail", "fix"} for check in found.values())
