"""C++ is compiled and run behind the sandbox's tiers: neither the compiler nor the program reaches anything."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.code.extract import extract_code
from tasks.code.runs import run_program
from tasks.code.verifier import CodeVerifier
from tasks.errors import TaskError
from tasks.sandbox import compiling
from tasks.sandbox.compiling import Compiler
from tasks.sandbox.job import Job, Limits
from tasks.sandbox.selftest import attack
from tasks.sandbox.tiers import TIERS, Tier
from tasks.sandbox.worker import Worker
from tasks.types import Prompt, Verdict
from tests.helpers.hostile_sources import CPP

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

# What the program does is its first word, so that one compilation serves all.
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <stdexcept>
#include <unistd.h>
#include <string>
#include <vector>
int deep(int n) { volatile char room[1000]; room[0] = n; return n ? deep(n - 1) + room[0] : 0; }
int main() {
    char what[32]; int a = 0, b = 0;
    if (scanf("%31s %d %d", what, &a, &b) < 1) return 9;
    std::string w = what;
    if (w == "add") printf("%d\n", a + b);
    if (w == "real") printf("%.9f\n", a / (double)b);
    if (w == "loop") for (volatile int i = 0;; i = i + 1) {}
    if (w == "sleep") sleep(1000);
    if (w == "memory") { std::vector<char> v; for (;;) v.resize(v.size() + (1 << 24), 1); }
    if (w == "crash") { volatile int *p = nullptr; *p = 1; }
    if (w == "throw") try { throw std::runtime_error("x"); } catch (std::exception &) { puts("caught"); }
    if (w == "exit") return 3;
    if (w == "deep") printf("%d\n", deep(100000) < 1000000000);
    if (w == "output") for (;;) puts("x");
    if (w == "fork") printf("%d\n", fork());
    if (w == "vfork") printf("%d\n", vfork());
    if (w == "socket") printf("%d\n", socket(AF_INET, SOCK_STREAM, 0));
    if (w == "passwd") printf("%d\n", open("/etc/passwd", O_RDONLY));
    if (w == "write") printf("%d\n", open("/tmp/written-by-cpp", O_WRONLY | O_CREAT, 0666));
    if (w == "kill") printf("%d\n", kill(getppid(), 0));
    if (w == "exec") { char *v[] = {(char *)"sh", nullptr}; execve("/bin/sh", v, v); puts("-1"); }
    if (w == "report") printf("%d\n", (int)write(3, "[\"done\"]\n", 9));
    if (w == "environment") { extern char **environ; printf("%d\n", environ[0] == nullptr ? -1 : 0); }
}
"""
HELD = ("fork", "vfork", "socket", "passwd", "write", "kill", "exec", "report", "environment")


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    made = CodeVerifier(workers=1, limits=Limits(seconds=2.0, memory_mb=256, output_mb=1.0), partial_credit=True)
    yield made
    made.close()


def gold(*cases: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"kind": "stdin", "language": "cpp", "cases": [{"stdin": i, "stdout": o} for i, o in cases], **more}


def grade(verifier: CodeVerifier, tests: dict[str, Any], code: str) -> Verdict:
    return verifier.verify([(Prompt("code/1", "code", "", tests), f"</think>```cpp\n{code}\n```\nUse it.")])[0]


@pytest.fixture(scope="module")
def binary(verifier: CodeVerifier) -> bytes:
    compiled = verifier._running().compiler.compile(extract_code(f"```cpp\n{PROGRAM}\n```", language="cpp"))
    assert not compiled.problem
    return compiled.binary


def test_programs_are_graded_with_partial_credit(verifier: CodeVerifier, binary: bytes) -> None:
    right = grade(verifier, gold(("add 2 3", "5\n"), ("add -4 1", "-3"), ("deep", "1"), ("throw", "caught")), PROGRAM)
    assert (right.outcome, right.reward) == ("passed", 1.0), right
    half = grade(verifier, gold(("real 1 3", "0.33333"), ("real 1 3", "0.3333333"), tolerance=1e-6), PROGRAM)
    assert (half.outcome, half.reward) == ("failed", 0.5), half
    exits = grade(verifier, gold(("exit", ""), ("add 1 1", "2")), PROGRAM)
    assert (exits.outcome, exits.parts) == ("failed", {"cases": 0.5}), exits


@pytest.mark.parametrize(
    ("word", "outcome", "detail"),
    [
        ("loop", "timeout", "still running"),
        ("sleep", "timeout", "still running"),
        ("memory", "failed", "died by SIG"),
        ("crash", "failed", "SIGSEGV"),
        ("output", "failed", "too much output"),
    ],
)
def test_what_goes_wrong_is_told_apart(
    verifier: CodeVerifier, binary: bytes, word: str, outcome: str, detail: str
) -> None:
    verdict = grade(verifier, gold((word, "")), PROGRAM)
    assert verdict.outcome == outcome
    assert detail in verdict.detail


def test_what_is_no_cpp_fails_with_the_compilers_words(verifier: CodeVerifier) -> None:
    verdict = grade(verifier, gold(("", "")), "int main() { return undeclared; }")
    assert (verdict.outcome, "undeclared" in verdict.detail) == ("failed", True)
    assert grade(verifier, gold(("", "")), "").detail == "no program"
    unknown = grade(verifier, gold(("", ""), language="cobol"), "int main() {}")
    assert (unknown.outcome, "unknown language 'cobol'" in unknown.detail) == ("error", True)


def tiers_here() -> list[Tier]:
    found = []
    for tier in TIERS:
        try:
            attack(tier)
        except TaskError:
            continue
        found.append(tier)
    return found


def test_neither_program_nor_compiler_gets_out_in_any_tier(binary: bytes, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text('const char *secret = "found it";\n')
    tmp_path.chmod(0o777)
    secret.chmod(0o666)
    sources = {
        "include": f'#include "{secret}"\nint main() {{}}',
        "incbin": f'asm(".incbin \\"{secret}\\"");\nint main() {{}}',
        "passwd": "#include </etc/passwd>\nint main() {}",
        "package": f'asm(".incbin \\"{os.path.realpath(pytest.__file__)}\\"");\nint main() {{}}',
    }
    tiers = tiers_here()
    assert tiers
    for tier in tiers:
        worker = Worker(tier)
        try:
            for word in HELD:
                result = worker.run(Job("binary", "", stdin=word, binary=binary), Limits(seconds=5.0))
                assert (result.ending, result.stdout) == ("exited", b"-1\n"), (tier.name, word, result)
            assert not os.path.exists("/tmp/written-by-cpp")
        finally:
            worker.close()
        compiler = Compiler(tier)
        for name, source in sources.items():
            made = compiler.compile(source)
            assert made.problem, (tier.name, name)
            assert b"found it" not in made.binary


def test_a_compiler_that_takes_too_long_is_ended(verifier: CodeVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "SECONDS", 1)
    bomb = "template<int N> struct A { A<N+1> *a; static const int v = sizeof(*a); };\n"
    bomb += "constexpr unsigned long f(unsigned long n) { while (n) n += 2; return n; }\n"
    start = time.monotonic()
    made = verifier._running().compiler.compile(bomb + "constexpr auto x = f(1);\nint main() { return x; }")
    assert made.problem
    assert time.monotonic() - start < 100


def test_each_source_is_compiled_once(verifier: CodeVerifier, binary: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    assert grade(verifier, gold(("add 2 3", "5")), PROGRAM).outcome == "passed"
    new = grade(verifier, gold(("add 2 3", "5")), PROGRAM + "\n")
    assert (new.outcome, "apt-get install g++" in new.detail) == ("error", True)


def test_a_reward_runs_cpp() -> None:
    ran = run_program(
        '#include <cstdio>\nint main() { int a; scanf("%d", &a); printf("%d", a * a); }', "12", language="cpp"
    )
    assert (ran.ok, ran.stdout) == (True, "144"), ran
    assert "does not compile" in run_program("int main() {", language="cpp").detail
    with pytest.raises(TaskError, match="unknown language 'perl'"):
        run_program("1", language="perl")


def test_a_checkout_in_the_folder_for_temporary_files_compiles_too() -> None:
    one = "from tasks.sandbox.tiers import TIERS; from tasks.sandbox.compiling import Compiler\n"
    one += "print(len(Compiler(TIERS[int(__import__('sys').argv[1])]).compile('int main() {}').binary))"
    with tempfile.TemporaryDirectory() as checkout:
        shutil.copytree(Path(compiling.__file__).parents[1], f"{checkout}/tasks")
        for tier in tiers_here():
            command = [sys.executable, "-c", one, str(TIERS.index(tier))]
            done = subprocess.run(
                command,
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": checkout},
                capture_output=True,
                text=True,
                timeout=900,
            )
            assert done.returncode == 0, done.stderr
            assert int(done.stdout) > 0


@pytest.mark.parametrize("name", CPP)
def test_no_source_that_attacks_the_compiler_passes_or_breaks_it(verifier: CodeVerifier, name: str) -> None:
    verdict = grade(verifier, gold(("3", "4")), CPP[name])
    assert verdict.outcome in ("failed", "timeout", "memory"), verdict
    assert "root:" not in verdict.detail
