"""Installed wheels hold every part, and their core works without an engine on every Python they name."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scalelab import __version__

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
BESIDE = ("moe", "tasks", "experiments")
"""Packages of a checkout that a wheel has inside of `scalelab`."""
ROOMS = ("scalelab", *BESIDE)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
    "UV_PYTHON_DOWNLOADS": "never",
    "COLUMNS": "200",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist of what git tracks, built where nothing else lies."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    command: list[str | Path] = [UV, "build", "--quiet", "--python", sys.executable, "--out-dir", folder, source]
    subprocess.run(command, check=True, timeout=900, env=ENVIRONMENT)
    return folder


def tracked() -> list[str]:
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_git_tracks_no_links() -> None:
    """A link of one machine points nowhere on others, and one in the place of a folder replaces it."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--stage"], capture_output=True, text=True, check=True)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_the_wheel_holds_every_module_and_file_that_the_packages_read_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    rooms = {name: name.partition("/")[0] for name in tracked()}
    expected = {f"scalelab/{name}" if room in BESIDE else name for name, room in rooms.items() if room in ROOMS}
    assert names == expected
    recorded = [name for name in names if name.startswith("scalelab/recorded/")]
    assert 0 < sum((ROOT / name).stat().st_size for name in recorded) <= 3_000_000


@pytest.mark.nightly
def test_the_sdist_holds_what_git_tracks_and_its_tests_run_from_it(built: Path, tmp_path: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    held = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert not {name for name in tracked() if not name.startswith("docs/study/")} - held
    tests = ["tests/curves/test_fit.py", "tests/test_skips.py", "tests/packaging/test_locks.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=source, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout
    assert (
        str(source)
        in subprocess.run(
            [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); import scalelab; print(scalelab.__file__)"],
            cwd=source,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_what_is_built_can_be_published(built: Path) -> None:
    pytest.importorskip("twine")
    command: list[str | Path] = [sys.executable, "-m", "twine", "check", "--strict", *built.glob("scalelab-*")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


def test_a_package_index_gets_authors_addresses_and_no_relative_link(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if one.endswith("METADATA")]
        text = archive.read(name).decode()
    head, _, readme = text.partition("\n\n")
    assert re.findall(r"^Version: (.*)$", head, re.MULTILINE) == [__version__]
    assert {one.split(",")[0] for one in re.findall(r"^Project-URL: (.*)$", head, re.MULTILINE)} >= {
        "Homepage",
        "Documentation",
        "Changelog",
        "Issues",
    }
    assert "\nAuthor: " in head
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert len(links) > 5
    assert all(link.startswith("https://") for link in links)
    for link in links:
        if "scalelab-rl/scalelab" in link:
            path = re.split(r"/(?:blob/)?main/", link)[1]
            assert (ROOT / path.partition("#")[0]).exists(), link
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == __version__


@pytest.fixture(scope="module")
def core(built: Path) -> Path:
    return install(built, sys.executable)


def install(built: Path, python: str) -> Path:
    """Folder of the programs of a fresh environment that holds the core alone."""
    [wheel] = built.glob("*.whl")
    environment = built / f"core-{Path(python).name}"
    subprocess.run([UV, "venv", "--quiet", "--python", python, environment], check=True, timeout=900, env=ENVIRONMENT)
    into: list[str | Path] = ["--python", environment / "bin" / "python"]
    subprocess.run([UV, "pip", "install", "--quiet", *into, wheel], check=True, timeout=900, env=ENVIRONMENT)
    return environment / "bin"


def call(programs: Path, *arguments: object, code: int = 0) -> str:
    """Output of a command, standard error included, run in an empty folder."""
    nowhere = programs.parent / "empty"
    nowhere.mkdir(exist_ok=True)
    command: list[str | Path] = [programs / "scalelab", *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, cwd=nowhere, env=ENVIRONMENT
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_the_core_fits_forecasts_compares_plans_and_shows_without_an_engine(core: Path, tmp_path: Path) -> None:
    seeds = [ROOT / "docs" / "quickstart" / name for name in ("seed0", "seed1")]
    assert len(json.loads(call(core, "fit", *seeds, "--json"))["fits"]) == 4
    assert len(json.loads(call(core, "forecast", seeds[0], "--at", 1, "--json"))["forecasts"]) == 2
    recipes = [ROOT / "docs" / "first_study" / "runs" / "recipes_miniature" / name for name in ("scalerl", "magistral")]
    assert set(json.loads(call(core, "compare", *recipes, "--json"))["tasks"]) == {"math", "code"}
    assert json.loads(call(core, "plan", "scalerl_8b", "--json"))["fits"]
    call(core, "report", seeds[0], "-o", tmp_path / "report.html")
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "\nExperiments\n  quickstart " in call(core, "list")
    simulated = call(core, "simulate", "quickstart", "--no-search", "--hours", 0.1, "--json")
    assert json.loads(simulated)["split"]["steps"] > 0
    assert "quickstart" in call(core, "completion", "bash")


def test_values_of_an_installed_lab_come_from_places_that_a_reader_can_find(core: Path) -> None:
    origins = dict(re.findall(r"# (\S+):(\d+)$", call(core, "show", "quickstart"), re.MULTILINE))
    [packages] = core.parent.glob("lib/python3*/site-packages")
    assert origins.keys() >= {"scalelab/experiments/fragments/recipe/scalerl.gin"}
    for origin, line in origins.items():
        assert len((packages / origin).read_text().splitlines()) >= int(line)
        assert (ROOT / origin.removeprefix("scalelab/")).is_file()


def test_an_installed_lab_takes_no_name_that_others_may_want(core: Path, tmp_path: Path) -> None:
    """A user's own `tasks.py` and `experiments.py` are found, and the lab still finds its own."""
    for name in BESIDE:
        (tmp_path / f"{name}.py").write_text("MINE = 1e-4\n")
    (tmp_path / "idea.py").write_text(
        "from experiments import MINE\nfrom moe import MINE\nfrom tasks import MINE\n"
        "from scalelab.experiment import load\nfrom scalelab.own import Prompt, RewardTask\n"
        'experiment = load("quickstart")["quickstart"].override({"OptimizerConfig.lr": MINE})\n'
    )
    assert "OptimizerConfig.lr = 0.0001" in call(core, "show", tmp_path / "idea.py")


def test_an_installed_lab_starts_its_graders_and_its_sandbox_and_doctor_asks_it_for_kernels(
    built: Path, tmp_path: Path
) -> None:
    """In an environment of its own that sees the packages of this one, but not the checkout."""
    [wheel] = built.glob("*.whl")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "lab"], check=True, env=ENVIRONMENT)
    into: list[str | Path] = ["--python", tmp_path / "lab" / "bin" / "python"]
    subprocess.run([UV, "pip", "install", "--quiet", "--no-deps", *into, wheel], check=True, env=ENVIRONMENT)
    [packages] = (tmp_path / "lab" / "lib").glob("python3*/site-packages")
    (packages / "others.pth").write_text(f"{site.getsitepackages()[0]}\n")
    tests = {"kind": "stdin", "cases": [{"stdin": "3", "stdout": "4"}]}
    math = {"id": 1, "gold": "x^2+1", "completion": "so</think> \\boxed{1 + x*x}"}
    code = {"id": 1, "tests": tests, "completion": "so</think> ```python\nprint(int(input()) + 1)\n```"}
    for task, line in (("math", math), ("code", code)):
        (tmp_path / "in.jsonl").write_text(json.dumps(line))
        call(tmp_path / "lab" / "bin", "grade", "--task", task, "--in", tmp_path / "in.jsonl", "--out", tmp_path / task)
        assert json.loads((tmp_path / task).read_text())["outcome"] == "passed"
    code_of_doctor = "from scalelab import doctor; print([check.ok for check in doctor._kernels()])"
    kernels = subprocess.run(
        [tmp_path / "lab" / "bin" / "python", "-c", code_of_doctor], cwd=tmp_path, env=ENVIRONMENT, capture_output=True
    )
    assert set(re.findall(rb"\w+", kernels.stdout)) == {b"True"}, kernels


def test_what_needs_an_engine_says_so_in_one_line(core: Path) -> None:
    for arguments in (("run", "quickstart"), ("run", "quickstart", "--set", "Budget.steps=1")):
        said = call(core, *arguments, code=1)
        assert re.fullmatch(r"scalelab: this needs the lab's engines, and \w+ is not installed: .*\n", said), said
    assert not (core.parent / "empty" / "runs").exists()
    failed = [line for line in call(core, "doctor", code=1).splitlines() if line.startswith("FAIL")]
    assert [line.split()[1] for line in failed] == ["engines"]


def test_the_core_installs_and_fits_on_the_newer_pythons_of_this_machine(built: Path) -> None:
    """Python 3.12 and 3.13 where they are found; the package names no others."""
    for python in newer_pythons():
        programs = install(built, python)
        fits = json.loads(call(programs, "fit", ROOT / "docs" / "quickstart" / "seed0", "--json"))["fits"]
        assert [fit["task"] for fit in fits] == ["code", "math"]
        call(programs, "list")
        code = "from scalelab.tasks.sandbox.selftest import choose_tier; print(choose_tier())"
        sandbox = subprocess.run(  # in a folder without the checkout's own `scalelab`
            [programs / "python", "-c", code], capture_output=True, text=True, env=ENVIRONMENT, cwd=built
        )
        assert sandbox.stdout.startswith("sandbox "), f"{python}: {sandbox.stderr}"


def newer_pythons() -> list[str]:
    """Interpreters on the search path and among pyenv's versions, one of each release."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [*map(Path, os.environ["PATH"].split(os.pathsep)), *sorted(pyenv.glob("3.1[23].*/bin"))]
    found = {}
    for release in ("3.12", "3.13"):
        for folder in folders:
            python = folder / f"python{release}"
            if python.is_file() and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                found[release] = str(python)
    return list(found.values())
