"""JavaScript runs behind the sandbox's tiers: what Python may not do, it may not do either."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.code.extract import extract_code
from tasks.code.runs import run_program
from tasks.code.verifier import CodeVerifier
from tasks.sandbox import scripts
from tasks.sandbox.job import Job, Limits
from tasks.sandbox.scripts import node
from tasks.sandbox.worker import Worker
from tasks.types import Prompt, Verdict
from tests.helpers.hostile_sources import JAVASCRIPT
from tests.tasks.test_cpp import tiers_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node", path="/usr/bin:/usr/local/bin") is None, reason="needs Node.js"),
]

# What the program does is its first word.
PROGRAM = r"""
const fs = require("fs");
const [what, ...rest] = fs.readFileSync("/dev/stdin", "utf8").trim().split(/\s+/);
const [a, b] = rest.map(Number);
const tried = {
    add: () => a + b,
    real: () => (a / b).toFixed(9),
    big: () => 2n ** 100n,
    loop: () => { for (;;); },
    sleep: () => { setInterval(() => {}, 1000); return ""; },
    heap: () => { const all = []; for (;;) all.push(new Array(1e6).fill(1.5)); },
    buffers: () => { const all = []; for (;;) all.push(Buffer.alloc(1e7, 1)); },
    deep: () => { const down = (n) => n && 1 + down(n - 1); return down(5000); },
    endless: () => { const down = () => 1 + down(); return down(); },
    output: () => { for (;;) fs.writeSync(1, "x".repeat(1000)); },
    thrown: () => { throw new Error("x"); },
    exit: () => process.exit(3),
};
console.log(String(tried[what]()));
"""

# Each returns, or resolves to, what it got hold of, or fails.
ATTACKS = r"""
const fs = require("fs"), net = require("net"), dns = require("dns"), os = require("os"), path = require("path");
const child = require("child_process"), { Worker } = require("worker_threads");
const [what, secret, port, host] = fs.readFileSync(0, "utf8").trim().split(/\s+/);
const ended = (spawned) => new Promise((done, failed) => spawned.on("error", failed).on("exit", done));
const attacks = {
    secret: () => fs.readFileSync(secret, "utf8"),
    secret_later: () => fs.promises.readFile(secret, "utf8"),
    passwd: () => fs.readFileSync("/etc/passwd", "utf8"),
    package: () => fs.readFileSync(host, "utf8"),
    list: () => fs.readdirSync(path.dirname(secret)).join(),
    write: () => fs.writeFileSync(path.dirname(secret) + "/written", "x"),
    append: () => fs.appendFileSync(secret, "x"),
    remove: () => fs.unlinkSync(secret),
    rename: () => fs.renameSync(secret, secret + "2"),
    mode: () => fs.chmodSync(secret, 0o777),
    folder: () => fs.mkdirSync(path.dirname(secret) + "/written"),
    link: () => fs.symlinkSync("/etc/passwd", path.dirname(secret) + "/written"),
    spawn: () => ended(child.spawn("/bin/sh", ["-c", "true"])),
    spawn_sync: () => { const ran = child.spawnSync("/bin/sh", ["-c", "true"]); if (ran.error) throw ran.error; },
    itself: () => { const ran = child.spawnSync("/usr/bin/node", ["-v"]); if (ran.error) throw ran.error; },
    connect: () => new Promise((done, failed) => net.connect(port, "127.0.0.1", done).on("error", failed)),
    listen: () => new Promise((done, failed) => net.createServer().on("error", failed).listen(0, done)),
    resolve: () => dns.promises.lookup("localhost"),
    parent: () => process.kill(process.ppid, 0),
    everybody: () => process.kill(-1, 0),
    environment: () => { const names = Object.keys(process.env); if (!names.length) throw "empty"; return names; },
    of_parent: () => fs.readFileSync(`/proc/${process.ppid}/environ`),
    memory: () => fs.readFileSync("/proc/self/maps"),
    report: () => fs.writeSync(3, '["done"]\n'),
    others: () => { for (let n = 3; n < 64; n++) try { fs.fstatSync(n).isSocket() && fs.writeSync(n, "x"); } catch {}
        throw "none"; },
    native: () => process.dlopen({ exports: {} }, secret),
    user: () => process.setuid(0),
    priority: () => os.setPriority(process.ppid, 19),
    root: () => process.chdir(path.dirname(secret)) || fs.readFileSync("secret"),
    worker: () => new Promise((done, failed) => {
        const code = "require('worker_threads').parentPort.postMessage(require('fs').readFileSync(" +
            JSON.stringify(secret) + ", 'utf8'))";
        new Worker(code, { eval: true }).on("message", done).on("error", failed);
    }),
    binding: () => {
        const ran = process.binding("spawn_sync").spawn({ file: "/bin/sh", args: ["sh"], stdio: [{ type: "ignore" }] });
        if (ran.error) throw ran.error;
    },
};
(async () => {
    try { await attacks[what](); console.log("through"); } catch (error) { console.log("held"); }
    process.exit(0);
})();
"""
NAMES = [
    *("secret", "secret_later", "passwd", "package", "list", "write", "append", "remove", "rename", "mode", "folder"),
    *("link", "spawn", "spawn_sync", "itself", "connect", "listen", "resolve", "parent", "everybody", "environment"),
    *("of_parent", "memory", "report", "others", "native", "user", "priority", "root", "worker", "binding"),
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    made = CodeVerifier(workers=1, limits=Limits(seconds=3.0, memory_mb=128, output_mb=1.0), partial_credit=True)
    yield made
    made.close()


def gold(*cases: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"kind": "stdin", "language": "javascript", "cases": [{"stdin": i, "stdout": o} for i, o in cases], **more}


def grade(verifier: CodeVerifier, tests: dict[str, Any], code: str, mark: str = "js") -> Verdict:
    answer = f"</think>```{mark}\n{code}\n```\nRun it:\n```sh\nnode program.js\n```"
    return verifier.verify([(Prompt("code/1", "code", "", tests), answer)])[0]


def test_programs_are_graded_with_partial_credit(verifier: CodeVerifier) -> None:
    cases = (("add 2 3", "5\n"), ("big", str(2**100)), ("deep", "5000"))
    right = grade(verifier, gold(*cases), PROGRAM)
    assert (right.outcome, right.reward) == ("passed", 1.0), right
    half = grade(verifier, gold(("real 1 3", "0.33333"), ("real 1 3", "0.3333333"), tolerance=1e-6), PROGRAM, "")
    assert (half.outcome, half.reward) == ("failed", 0.5), half


@pytest.mark.parametrize(
    "code",
    [
        "let t = ''; process.stdin.on('data', d => t += d).on('end', () => console.log(t.split(' ').length))",
        "require('readline').createInterface({ input: process.stdin })"
        ".on('line', l => console.log(l.split(' ').length))",
        "console.log(require('fs').readFileSync(0, 'utf8').split(' ').length)",
        "(async () => { let n = 0; for await (const d of process.stdin) n += `${d}`.split(' ').length; "
        "console.log(n) })()",
        "setTimeout(() => process.stdout.write('3\\n'), 50)",
    ],
)
def test_the_usual_ways_to_read_and_write_work(verifier: CodeVerifier, code: str) -> None:
    verdict = grade(verifier, gold(("1 2 3", "3")), code)
    assert verdict.outcome == "passed", verdict


@pytest.mark.parametrize(
    ("word", "outcome", "detail"),
    [
        ("loop", "timeout", "still running"),
        ("sleep", "timeout", "still running"),
        ("heap", "failed", "died by SIG"),
        ("buffers", "failed", "exit code"),
        ("endless", "failed", "exit code 1"),
        ("thrown", "failed", "exit code 1"),
        ("exit", "failed", "exit code 3"),
        ("output", "failed", "too much output"),
    ],
)
def test_what_goes_wrong_is_told_apart(verifier: CodeVerifier, word: str, outcome: str, detail: str) -> None:
    verdict = grade(verifier, gold((word, "")), PROGRAM)
    assert (verdict.outcome, detail in verdict.detail) == (outcome, True), verdict


def test_what_is_no_javascript_fails(verifier: CodeVerifier) -> None:
    assert grade(verifier, gold(("", "")), "let let = (").outcome == "failed"
    assert grade(verifier, gold(("", "")), "").detail == "no program"


def test_nothing_gets_out_in_any_tier(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("found it")
    tmp_path.chmod(0o777)
    secret.chmod(0o666)
    tiers = tiers_here()
    assert tiers
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        for tier in tiers:
            worker = Worker(tier, interpreter=node)
            try:
                for name in NAMES:
                    stdin = f"{name} {secret} {listener.getsockname()[1]} {os.path.realpath(pytest.__file__)}"
                    result = worker.run(Job("script", ATTACKS, stdin=stdin), Limits(seconds=10.0))
                    assert (result.ending, result.stdout) == ("exited", b"held\n"), (tier.name, name, result)
                    assert not result.report
            finally:
                worker.close()
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]
    assert secret.read_text() == "found it"


# Grades nothing: does what an attack's name says, in the strongest tier that its user has.
AS_SOMEBODY = """
import sys
root, attacks, secret, *names = sys.argv[1:]
sys.path.insert(0, root)
from tasks.sandbox.job import Job, Limits
from tasks.sandbox.scripts import node
from tasks.sandbox.selftest import choose_tier
from tasks.sandbox.worker import Worker
worker = Worker(choose_tier().tier, interpreter=node)
for name in names:
    result = worker.run(Job("script", attacks, stdin=f"{name} {secret} 1 /etc/hostname"), Limits(seconds=10.0))
    assert (result.ending, result.stdout) == ("exited", b"held\\n"), (name, result)
    assert not result.report
assert worker.run(Job("script", "console.log(2 + 3)"), Limits(seconds=10.0)).stdout == b"5\\n"
worker.close()
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else")
@pytest.mark.parametrize(
    "who", [["--reuid", "65534", "--regid", "65534", "--clear-groups"], ["--bounding-set", "-all"]]
)
def test_nothing_gets_out_for_an_ordinary_user_and_for_root_without_rights(who: list[str]) -> None:
    python = shutil.which("python3.11", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no interpreter that everybody may run")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        secret = Path(folder, "secret")
        secret.write_text("found it")
        Path(folder).chmod(0o777)
        secret.chmod(0o666)
        arguments = [str(Path(__file__).parents[2]), ATTACKS, str(secret), *NAMES]
        command = ["setpriv", *who, python, "-c", AS_SOMEBODY, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd="/")
        assert done.returncode == 0, done.stderr
        assert [(entry.name, entry.read_text()) for entry in Path(folder).iterdir()] == [("secret", "found it")]


def test_the_attacks_are_attacks(tmp_path: Path) -> None:
    """Without a sandbox the harmless ones get through."""
    (tmp_path / "secret").write_text("found it")
    for name in ("secret", "secret_later", "passwd", "list", "spawn", "spawn_sync", "listen", "parent", "worker"):
        ran = subprocess.run(
            [node().path, "-e", ATTACKS],
            input=f"{name} {tmp_path}/secret 1 x",
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert ran.stdout == "through\n", (name, ran)


def test_a_program_is_found_among_other_blocks() -> None:
    answer = "```js\nconst usage = f(3)\n```\n```js\nrequire('fs').readFileSync(0)\n```\n```js\nf(1)\n```"
    assert extract_code(answer, language="javascript") == "require('fs').readFileSync(0)"


def test_a_reward_runs_javascript() -> None:
    ran = run_program("console.log(Number(require('fs').readFileSync(0)) ** 2)", "12", language="javascript")
    assert (ran.ok, ran.stdout) == (True, "144\n"), ran


def test_without_node_the_outcome_is_an_error_that_says_so(
    verifier: CodeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.shutil, "which", lambda *_, **__: None)
    other = CodeVerifier(workers=1, survey=verifier.sandbox)
    try:
        verdict = grade(other, gold(("add 1 1", "2")), PROGRAM)
    finally:
        other.close()
    assert (verdict.outcome, "apt-get install nodejs" in verdict.detail) == ("error", True), verdict


@pytest.mark.parametrize("name", JAVASCRIPT)
def test_no_source_that_attacks_the_engine_passes_or_breaks_it(verifier: CodeVerifier, name: str) -> None:
    verdict = grade(verifier, gold(("3", "4")), JAVASCRIPT[name])
    assert verdict.outcome in ("failed", "timeout", "memory"), verdict
