"""Set-up as a stranger meets it: the real script with real pip, on a lock of a few small packages from a folder.

The lock of these tests has the form of requirements/cpu.txt. Its `torch` is a wheel of a few bytes, since the script
treats that package alone in a way of its own; pip and setuptools are those of the real lock.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import psutil
import pytest

from scalelab.machine import GIB, HostFacts, problems, this_machine

ROOT = Path(__file__).parents[2]
SCRIPTS = ("tools/install.sh", "tools/venv.sh", "tools/apt_install.sh", "scalelab/machine.py", "scalelab/__init__.py")
PROJECT = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
REAL = ("pip", "setuptools")
NAME = "set up ü"
"""A folder with a space and a letter that is not ASCII."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every wheel of the small lock, which pip takes as its only source."""
    folder = tmp_path_factory.mktemp("wheels")
    command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "-d", folder]
    locked = [entry for entry in entries("tools") if entry.startswith(REAL)]
    (folder / "real.txt").write_text("".join(locked))
    subprocess.run([*command, "--require-hashes", "-r", folder / "real.txt"], check=True, timeout=600)
    for name, version in (("torch", "2.13.0+cpu"), ("torch", "2.13.0"), ("small", "1.0"), ("cuda_small", "1.0")):
        wheel(folder, name, version)
    return folder


def entries(lock: str) -> list[str]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    return re.findall(r"^\w.*\n(?:    .*\n)*", text, re.MULTILINE)


def wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel whose module states its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without packages, for set-ups that are about what comes later: it takes most of their time."""
    environment = tmp_path_factory.mktemp("begun") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=600)
    return environment


def checkout(folder: Path, wheels: Path, begun: Path | None = None) -> Path:
    """A checkout as small as the script allows, whose locks name the wheels; `begun` is its environment so far."""
    tree = folder / NAME
    if begun is not None:
        shutil.copytree(begun, tree / ".venv", symlinks=True)
    for name in (*SCRIPTS, *PROJECT):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / "requirements").mkdir()
    digests = {
        path.name.split("-py3")[0]: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.glob("*.whl")
    }
    small = f"small==1.0 \\\n    --hash=sha256:{digests['small-1.0']}\n"
    torch = [f"    --hash=sha256:{digests[f'torch-2.13.0{build}']}" for build in ("", "+cpu")]
    locks = {
        "tools": "".join(entry for entry in entries("tools") if entry.startswith(REAL)),
        "cpu": small + " \\\n".join(["torch==2.13.0", *torch]) + "\n",
        "torch-cuda": f"cuda-small==1.0 \\\n    --hash=sha256:{digests['cuda_small-1.0']}\n",
    }
    for name, text in locks.items():
        (tree / "requirements" / f"{name}.txt").write_text(text)
    return tree


def environment(wheels: Path, **more: str) -> dict[str, str]:
    """The environment of a set-up: pip's own settings name the folder and no index."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), **more}


def set_up(tree: Path, settings: dict[str, str], become: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*become, "bash", str(tree / "tools" / "install.sh")]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=600)


def packages(tree: Path) -> dict[str, str]:
    """Versions in the environment, each as the imported module states it."""
    code = "import small, torch, scalelab.machine; print(small.__version__, torch.__version__, scalelab.__file__)"
    command: list[str | Path] = [tree / ".venv" / "bin" / "python", "-c", code]
    plain = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=60, env=plain)
    small, torch, package = done.stdout.strip().split(" ", 2)
    assert Path(package) == tree / "scalelab" / "__init__.py"
    return {"small": small, "torch": torch}


def test_a_second_set_up_does_nothing(wheels: Path, tmp_path: Path) -> None:
    tree = checkout(tmp_path, wheels)
    first = set_up(tree, environment(wheels))
    assert first.returncode == 0, first.stderr
    assert re.fullmatch(
        r"installing the packages of requirements/cpu.txt into .venv with Python 3.*\ninstalled in \d+ s, \d+ MB\n",
        first.stdout,
    )
    assert packages(tree) == {"small": "1.0", "torch": "2.13.0+cpu"}, "the CPU build, as the folder has it"
    assert set_up(tree, environment(wheels)).stdout == ""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else")
def test_an_ordinary_user_whose_home_is_read_only_can_set_up(wheels: Path) -> None:
    pythons = [path for minor in (11, 12, 13) if (path := Path(f"/usr/bin/python3.{minor}")).exists()]
    usable = [
        one for one in pythons if subprocess.run([one, "-m", "ensurepip", "--version"], check=False).returncode == 0
    ]
    if not usable:
        pytest.skip("no interpreter that everybody may run, with venv")
    with tempfile.TemporaryDirectory() as name:  # that of pytest is for root alone
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(wheels, folder / "wheels")
        (folder / "wheels").chmod(0o755)
        tree = checkout(folder, wheels)
        for path in (tree, *tree.rglob("*")):
            os.chown(path, 65534, 65534)
        (folder / "home").mkdir(mode=0o555)
        settings = environment(folder / "wheels", HOME=str(folder / "home"), PYTHON=str(usable[0]))
        done = set_up(tree, settings, ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"))
        assert done.returncode == 0, done.stderr
        assert packages(tree)["torch"] == "2.13.0+cpu"
        assert list((folder / "home").iterdir()) == []


def test_without_a_cpu_build_the_index_s_build_is_taken_and_that_is_said(
    wheels: Path, begun: Path, tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(wheels, fewer, ignore=shutil.ignore_patterns("*+cpu*"))
    tree = checkout(tmp_path, wheels, begun)
    done = set_up(tree, environment(fewer))
    assert done.returncode == 0, done.stderr
    assert "torch's CPU build is on no index that can be reached: taking PyPI's, with 3 GB of CUDA" in done.stderr
    assert packages(tree)["torch"] == "2.13.0"
    assert list((tree / ".venv").glob("lib/*/site-packages/cuda_small.py"))


MOMENTS = (".venv/incomplete", ".venv/bin/pip", "torch.py", "__editable__*")


@pytest.mark.skipif(os.name != "posix", reason="not on this machine: signals")
@pytest.mark.parametrize("moments", [MOMENTS[2:], pytest.param(MOMENTS[:2], marks=pytest.mark.nightly)], ids="".join)
def test_a_set_up_that_was_killed_anywhere_goes_on(moments: Sequence[str], wheels: Path, tmp_path: Path) -> None:
    """One checkout, killed with its children as soon as a file appears, each time a later one."""
    tree = checkout(tmp_path, wheels)
    settings = environment(wheels)
    for moment in moments:
        pattern = moment if "/" in moment else f".venv/lib/python3*/site-packages/{moment}"
        for file in tree.glob(pattern):
            file.unlink()  # of the kill before
        started = subprocess.Popen(
            ["bash", str(tree / "tools" / "install.sh")],
            env=settings,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 300
        while not any(tree.glob(pattern)):
            assert started.poll() is None, f"ended before {moment} was there"
            assert time.monotonic() < deadline, f"no {moment} within 300 s"
            time.sleep(0.005)
        os.killpg(started.pid, signal.SIGKILL)
        started.wait(timeout=60)
        assert (tree / ".venv" / "incomplete").exists() or moment == MOMENTS[-1]
    done = set_up(tree, settings)
    assert done.returncode == 0, done.stderr
    assert packages(tree) == {"small": "1.0", "torch": "2.13.0+cpu"}
    assert not (tree / ".venv" / "incomplete").exists()


@pytest.mark.nightly
def test_an_environment_whose_python_has_gone_is_made_anew(wheels: Path, begun: Path, tmp_path: Path) -> None:
    tree = checkout(tmp_path, wheels, begun)
    assert set_up(tree, environment(wheels)).returncode == 0
    (tree / ".venv" / "bin" / "python").unlink()
    (tree / ".venv" / "bin" / "python").symlink_to("/nonexistent/python3")
    (tree / "requirements" / "cpu.txt").write_text((tree / "requirements" / "cpu.txt").read_text() + "# newer\n")
    assert set_up(tree, environment(wheels)).returncode == 0
    assert packages(tree)["small"] == "1.0"


def tampered(wheels: Path, folder: Path, changed: str) -> Path:
    """The wheels, with one byte of one changed."""
    shutil.copytree(wheels, folder)
    file = folder / f"{changed}-py3-none-any.whl"
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    return folder


def assert_refused(done: subprocess.CompletedProcess[str], tree: Path, package: str) -> None:
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    said = rf"scalelab: a file of {package}\S* is not the one that requirements/ names by its hash"
    assert re.match(said, done.stderr), done.stderr
    assert not list((tree / ".venv").glob("installed-*"))


def test_a_wheel_with_one_other_byte_is_refused(wheels: Path, begun: Path, tmp_path: Path) -> None:
    tree = checkout(tmp_path, wheels, begun)
    changed = tampered(wheels, tmp_path / "changed", "torch-2.13.0+cpu")
    assert_refused(set_up(tree, environment(changed)), tree, "torch==2.13.0")


@pytest.fixture
def index() -> Iterator[ThreadingHTTPServer]:
    """A package index (PEP 503) of the folder `served`, and a proxy to every such index; `asked` has the requests."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            folder, name = server.served, unquote(urlsplit(self.path).path).rstrip("/").rpartition("/")[2]
            if self.path.endswith(".whl"):
                page = (folder / name).read_bytes()
            else:
                files = [
                    file.name
                    for file in folder.glob("*.whl")
                    if re.split("-[0-9]", file.name)[0] == name.replace("-", "_")
                ]
                page = "".join(f'<a href="/files/{quote(file)}">{file}</a>\n' for file in files).encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Content-Type", "application/octet-stream" if self.path.endswith(".whl") else "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *arguments: object) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_another_index_and_a_proxy_are_taken_from_pip_s_settings_and_hashes_hold_behind_them(
    wheels: Path, begun: Path, tmp_path: Path, index: Any
) -> None:
    tree, home = checkout(tmp_path, wheels, begun), tmp_path / "home"
    (home / ".config" / "pip").mkdir(parents=True)
    here = f"http://127.0.0.1:{index.server_port}"
    (home / ".config" / "pip" / "pip.conf").write_text(f"[global]\nindex-url = {here}/simple\n")
    settings = environment(wheels, HOME=str(home))
    del settings["PIP_NO_INDEX"], settings["PIP_FIND_LINKS"]
    index.served = tampered(wheels, tmp_path / "changed", "small-1.0")
    assert_refused(set_up(tree, settings), tree, "small==1.0")
    assert "/simple/small/" in index.asked

    index.served, index.asked = wheels, []
    behind = {"PIP_INDEX_URL": "http://index.invalid/simple", "PIP_TRUSTED_HOST": "index.invalid", "http_proxy": here}
    done = set_up(tree, settings | behind)
    assert done.returncode == 0, done.stderr
    assert packages(tree) == {"small": "1.0", "torch": "2.13.0+cpu"}
    assert "http://index.invalid/simple/small/" in index.asked


def test_without_a_network_one_line_says_so(wheels: Path, begun: Path, tmp_path: Path) -> None:
    tree = checkout(tmp_path, wheels, begun)
    settings = environment(wheels, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1", PIP_EXTRA_INDEX_URL="")
    del settings["PIP_NO_INDEX"], settings["PIP_FIND_LINKS"]
    done = set_up(tree, settings)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("scalelab: the package index cannot be reached; pip's own settings are taken: a proxy with")


STAND_IN = """#!/bin/sh
case "$*" in
    *version_info*) echo {version};;
    *machine.py*) exit 0;;
    *) echo "The virtual environment was not created successfully because ensurepip is not available."; exit 1;;
esac
"""


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0", "3.15.0", "2.7.18"])
def test_another_python_is_refused_in_one_line_before_anything_is_made(
    wheels: Path, tmp_path: Path, version: str
) -> None:
    tree = checkout(tmp_path, wheels)
    done = set_up(tree, environment(wheels, PYTHON=program(tmp_path / "python", STAND_IN.format(version=version))))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"scalelab: needs Python 3.11, 3.12, 3.13; found {version}: install one .*make PYTHON=/path/to/python\n",
        done.stderr,
    )
    assert not (tree / ".venv").exists()


def test_a_python_without_venv_is_refused_with_the_package_to_install(wheels: Path, tmp_path: Path) -> None:
    tree = checkout(tmp_path, wheels)
    python = program(tmp_path / "python", STAND_IN.format(version="3.13.5"))
    for _ in range(2):
        done = set_up(tree, environment(wheels, PYTHON=python))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "this Python has no venv: sudo apt-get install python3-venv" in done.stderr


def program(path: Path, code: str) -> str:
    path.write_text(code)
    path.chmod(0o755)
    return str(path)


GOOD = HostFacts("linux", "x86_64", 64, (2, 36), True, 24 * GIB, 60 * GIB)


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (HostFacts("darwin", "aarch64", 64, None, False, 24 * GIB, 60 * GIB), "needs Linux (on Windows: WSL)"),
        (HostFacts("linux", "i686", 32, (2, 36), True, 24 * GIB, 60 * GIB), "this one has 32 bits on i686"),
        (HostFacts("linux", "riscv64", 64, (2, 36), False, 24 * GIB, 60 * GIB), "x86-64 or Arm"),
        (HostFacts("linux", "x86_64", 64, None, True, 24 * GIB, 60 * GIB), "another C library (musl?)"),
        (HostFacts("linux", "x86_64", 64, (2, 28), True, 24 * GIB, 60 * GIB), "this system has glibc 2.28"),
        (HostFacts("linux", "x86_64", 64, (2, 36), False, 24 * GIB, 60 * GIB), "need AVX2"),
        (HostFacts("linux", "x86_64", 64, (2, 36), True, 2 * GIB, 60 * GIB), "2.0 GiB of memory, and the smallest run"),
        (
            HostFacts("linux", "x86_64", 64, (2, 36), True, 24 * GIB, 3 * GIB),
            "3.0 GiB of disk are free, and the packages",
        ),
    ],
)
def test_a_machine_that_cannot_run_the_lab_is_told_why_and_what_works_all_the_same(
    machine: HostFacts, said: str
) -> None:
    [sentence] = problems(machine, "cpu")
    assert said in sentence
    assert sentence.endswith("pip install .")


def test_arm_and_gpu_machines_need_no_avx2() -> None:
    assert problems(GOOD, "cpu") == problems(GOOD, "gpu") == []
    arm = HostFacts("linux", "aarch64", 64, (2, 36), False, 24 * GIB, 60 * GIB)
    assert problems(arm, "cpu") == problems(HostFacts(**(vars(GOOD) | {"avx2": False})), "gpu") == []


def test_gpus_beside_arm_take_a_newer_c_library() -> None:
    old = HostFacts("linux", "aarch64", 64, (2, 31), False, 24 * GIB, 60 * GIB)
    assert problems(old, "cpu") == problems(HostFacts(**(vars(old) | {"glibc": (2, 34)})), "gpu") == []
    [sentence] = problems(old, "gpu")
    assert "glibc 2.34 or newer, and this system has glibc 2.31: take Debian 12, Ubuntu 22.04 or newer" in sentence


def test_a_container_s_limit_is_the_memory_that_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       25165824 kB\nMemFree: 1 kB\n")
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx avx2 bmi1\n")
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    here = this_machine(tmp_path, proc=tmp_path, groups=tmp_path)
    assert (here.memory, here.avx2) == (2 * GIB, True)
    (tmp_path / "memory.max").write_text("max\n")
    assert this_machine(tmp_path, proc=tmp_path, groups=tmp_path).memory == 24 * GIB
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    assert this_machine(tmp_path, proc=tmp_path, groups=tmp_path).memory == 3 * GIB


@pytest.mark.skipif(os.getuid() != 0, reason="only root can put other files in the place of the kernel's")
@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ("setarch i686", "this one has 64 bits on i686; curves"),
        ("mount --bind cpuinfo /proc/cpuinfo", "need AVX2, which this processor does not have; curves"),
        ("mount --bind meminfo /proc/meminfo", "2.0 GiB of memory, and the smallest run needs 4: give"),
    ],
    ids=["32 bits", "no AVX2", "2 GB"],
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="not on this machine: the cases are of x86-64")
def test_a_machine_that_is_too_small_or_too_old_is_refused_in_one_line_before_anything_is_made(
    wheels: Path, tmp_path: Path, instead: str, said: str
) -> None:
    tree = checkout(tmp_path, wheels)
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse4_2 avx bmi1\n")
    (tmp_path / "meminfo").write_text("MemTotal:        2097152 kB\n")
    run = f'{instead} bash "$0"' if instead.startswith("setarch") else f'{instead} && exec bash "$0"'
    command: list[str | Path] = ["unshare", "--mount", "bash", "-c", run, tree / "tools" / "install.sh"]
    done = subprocess.run(command, env=environment(wheels), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("scalelab: ")
    assert said in done.stderr
    assert not (tree / ".venv").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_refused_before_anything_is_downloaded(wheels: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)
    try:
        tree = checkout(disk, wheels)
        done = set_up(tree, environment(wheels))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert "GiB of disk are free, and the packages need" in done.stderr
        assert not (tree / ".venv").exists()
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_disk_without_room_for_cuda_libraries_is_refused_before_they_are_downloaded(
    wheels: Path, begun: Path, tmp_path: Path
) -> None:
    disk, fewer = tmp_path / "disk", tmp_path / "fewer"
    disk.mkdir()
    shutil.copytree(wheels, fewer, ignore=shutil.ignore_patterns("*+cpu*"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g", "tmpfs", disk], check=True)
    try:
        tree = checkout(disk, wheels, begun)
        done = set_up(tree, environment(fewer))
        assert (done.returncode, done.stderr.count("\n")) == (1, 2), done.stderr
        assert re.search(r"\nscalelab: [78]\.\d GiB of disk are free, and the packages need 12: free some", done.stderr)
        assert not list(tree.glob(".venv/lib/*/site-packages/torch*"))
    finally:
        subprocess.run(["umount", disk], check=True)


NEEDED = (
    "bash",
    "cat",
    "chmod",
    "cut",
    "dirname",
    "du",
    "env",
    "flock",
    "mkdir",
    "rm",
    "sed",
    "seq",
    "sha256sum",
    "touch",
)
"""Programs that are there beside the stand-ins: none that the scripts look for."""
STUB_PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) echo 3.11.7;;
    "-m venv .venv") mkdir -p .venv/bin; cat "$0" > .venv/bin/python; chmod +x .venv/bin/python;;
    *libnuma*) exit 1;;
esac
"""
APT = """#!/bin/sh
echo "$@" >> calls
case "$2" in
    update) [ -e lists_free ] || { touch lists_free; exit 100; };;
    *) exit "$APT_RESULT";;
esac
"""


def as_root(tree: Path, apt_result: int) -> subprocess.CompletedProcess[str]:
    """Run the script as root on a machine without bubblewrap, g++ and Node.js, with a stand-in for apt-get."""
    programs = tree / "programs"
    programs.mkdir(exist_ok=True)
    for name in NEEDED:
        (programs / name).unlink(missing_ok=True)
        (programs / name).symlink_to(str(shutil.which(name)))
    dpkg = '#!/bin/sh\necho "dpkg $@" >> calls\n'
    stand_ins = {
        "python3": STUB_PYTHON,
        "apt-get": APT,
        "dpkg": dpkg,
        "id": "#!/bin/sh\necho 0\n",
        "sleep": "#!/bin/sh\n",
    }
    for name, code in stand_ins.items():
        program(programs / name, code)
    settings = {"PATH": str(programs), "APT_RESULT": str(apt_result)}
    command = [str(shutil.which("bash")), str(tree / "tools" / "install.sh")]
    return subprocess.run(command, env=settings, cwd=tree, capture_output=True, text=True, check=True, timeout=900)


def test_a_set_up_by_root_ends_an_interrupted_installation_and_waits_for_another_apt_get(
    wheels: Path, tmp_path: Path
) -> None:
    tree = checkout(tmp_path, wheels)
    assert as_root(tree, apt_result=0).stderr == ""
    dpkg, update, again, installing = (tree / "calls").read_text().splitlines()
    assert dpkg == "dpkg --configure -a"
    assert update == again == "-qq update", "the first finds the lists locked"
    assert installing == "-qq -o DPkg::Lock::Timeout=300 install -y bubblewrap g++ nodejs libnuma1"


def test_a_machine_that_lacks_something_is_told_every_time_in_one_line(wheels: Path, tmp_path: Path) -> None:
    tree = checkout(tmp_path, wheels)
    for _ in range(2):
        done = as_root(tree, apt_result=100)
        needed = "the sandbox's strongest tier, C++, JavaScript, vLLM on a CPU"
        command = "sudo apt-get install bubblewrap g++ nodejs libnuma1"
        assert done.stderr == f"this machine lacks what is needed for {needed}: {command}\n"


CONTROL = "Package: small\nVersion: 1.0\nArchitecture: all\nMaintainer: a test <test@invalid>\nDescription: small\n"
CONFIGURE = """#!/bin/sh
[ -e {folder}/second ] || {{ touch {folder}/inside; sleep 1000; }}
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("apt-get"), reason="only root can install with apt-get")
def test_an_installation_of_apt_s_that_was_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    """apt-get and dpkg themselves, with lists and a data base of their own, on a package without files."""
    package, apt, dpkg = tmp_path / "package/DEBIAN", tmp_path / "apt", tmp_path / "dpkg"
    for folder in (package, apt / "lists/partial", apt / "cache/archives/partial", dpkg / "info", dpkg / "updates"):
        folder.mkdir(parents=True)
    (package / "control").write_text(CONTROL)
    program(package / "postinst", CONFIGURE.format(folder=tmp_path))
    archive = tmp_path / "small.deb"
    subprocess.run(["dpkg-deb", "--build", package.parent, archive], check=True, capture_output=True)
    content = archive.read_bytes()
    about = f"Filename: ./small.deb\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    (tmp_path / "Packages").write_text(CONTROL + about)
    (dpkg / "status").touch()
    (apt / "sources.list").write_text(f"deb [trusted=yes] file:{tmp_path} ./\n")
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}"; Dir::State::status "{dpkg}/status"; Dir::Cache "{apt}/cache";\n'
        f'Dir::Etc::sourcelist "{apt}/sources.list"; Dir::Etc::sourceparts "/dev/null"; APT::Sandbox::User "root";\n'
    )
    settings = {"PATH": os.environ["PATH"], "APT_CONFIG": str(apt / "apt.conf"), "DPKG_ADMINDIR": str(dpkg)}
    command: list[str | Path] = ["bash", ROOT / "tools" / "apt_install.sh", "small"]
    started = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (tmp_path / "inside").exists():
        assert started.poll() is None, "ended before the package was configured"
        assert time.monotonic() < deadline, "not configured within 300 s"
        time.sleep(0.01)
    tree = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
    assert {"dpkg", "apt-get"} & {one.name() for one in tree}
    for one in tree:
        with suppress(psutil.NoSuchProcess):  # it may end by itself once its parent is gone
            one.kill()
    started.wait(timeout=60)
    psutil.wait_procs(tree, timeout=60)
    state = ["dpkg-query", "--show", "--showformat=${Status}", "small"]
    assert subprocess.run(state, env=settings, capture_output=True, text=True).stdout == "install ok half-configured"
    (tmp_path / "second").touch()
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert subprocess.run(state, env=settings, capture_output=True, text=True).stdout == "install ok installed"
