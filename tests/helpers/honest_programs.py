"""Right answers as models write them, each of which must pass: (tests, the whole answer after the thinking)."""

from typing import Any

# ruff: noqa: E501 - programs on one line


def _calls(*cases: tuple[list[Any], Any], entry_point: str = "f", **more: Any) -> dict[str, Any]:
    return {
        "kind": "call",
        "entry_point": entry_point,
        "cases": [{"args": a, "expected": e} for a, e in cases],
        **more,
    }


def _asserts(code: str, **more: Any) -> dict[str, Any]:
    return {"kind": "asserts", "code": code, **more}


def _stdin(*cases: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"kind": "stdin", "cases": [{"stdin": i, "stdout": o} for i, o in cases], **more}


def _fenced(code: str, language: str = "python") -> str:
    return f"Here it is:\n\n```{language}\n{code}\n```\n"


DOUBLE, ADD = _calls(([2], 4), ([0], 0)), _stdin(("1 2\n", "3\n"), ("5 6\n", "11\n"))
NODE = "class Node:\n    def __init__(self, val=0, next=None):\n        self.val = val\n        self.next = next\n"
LIST = (
    NODE
    + "def nodes(xs):\n    head = None\n    for x in reversed(xs): head = Node(x, head)\n    return head\n"
    + "def same(a, b):\n    while a and b:\n        if a.val != b.val: return False\n        a, b = a.next, b.next\n"
    + "    return a is b is None\n"
)
RIGHT = "def f(x):\n    return 2 * x"
PRINTED = "a, b = map(int, input().split())\nprint(a + b)"

HONEST = {
    # which block is the program
    "no fence": (DOUBLE, RIGHT),
    "a fence": (DOUBLE, _fenced(RIGHT)),
    "no language": (DOUBLE, _fenced(RIGHT, "")),
    "py": (DOUBLE, _fenced(RIGHT, "py")),
    "Python3": (DOUBLE, _fenced(RIGHT, "Python3")),
    "tildes": (DOUBLE, f"~~~python\n{RIGHT}\n~~~"),
    "indented in a list": (DOUBLE, "1. So:\n   ```python\n   def f(x):\n       return 2 * x\n   ```"),
    "usage after it": (DOUBLE, _fenced(RIGHT) + "Use it:\n" + _fenced("print(f(2))  # 4")),
    "output after it": (DOUBLE, _fenced(RIGHT) + "prints\n" + _fenced("4", "")),
    "a shell command after it": (DOUBLE, _fenced(RIGHT) + _fenced("python f.py", "bash")),
    "a draft before it": (DOUBLE, _fenced("def f(x): return x") + "Better:\n" + _fenced(RIGHT)),
    "cut off": (DOUBLE, "```python\n" + RIGHT),
    "closed on the last line": (DOUBLE, f"```python\n{RIGHT}```"),
    "windows lines": (DOUBLE, _fenced(RIGHT).replace("\n", "\r\n")),
    "tests in the same block": (DOUBLE, _fenced(RIGHT + "\nassert f(2) == 4\nprint('ok')")),
    "main guard": (DOUBLE, _fenced(RIGHT + "\nif __name__ == '__main__':\n    print(f(2))")),
    "a lambda": (DOUBLE, _fenced("f = lambda x: 2 * x")),
    "a program and an example of input": (ADD, _fenced(PRINTED) + "For\n" + _fenced("1 2", "")),
    "a program, then how to call it": (ADD, _fenced(PRINTED) + _fenced("print('see above')")),
    # what programs do
    "exit": (ADD, _fenced(PRINTED + "\nexit()")),
    "quit": (ADD, _fenced(PRINTED + "\nquit()")),
    "exit with nought": (ADD, _fenced(PRINTED + "\nexit(0)")),
    "sys.exit": (ADD, _fenced("import sys\n" + PRINTED + "\nsys.exit()")),
    "a thread for the stack": (
        ADD,
        _fenced(
            "import threading, sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(64 << 20)\n"
            "def main():\n    a, b = map(int, input().split())\n    print(a + b)\n"
            "t = threading.Thread(target=main)\nt.start()\nt.join()"
        ),
    ),
    "stdin read at once": (ADD, _fenced("import sys\na, b = map(int, sys.stdin.read().split())\nprint(a + b)")),
    "stdin in bytes": (ADD, _fenced("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))")),
    "open(0)": (ADD, _fenced("print(sum(map(int, open(0).read().split())))")),
    "input is a name": (ADD, _fenced("import sys\ninput = sys.stdin.readline\n" + PRINTED)),
    "stdout.write": (ADD, _fenced("import sys\nsys.stdout.write(str(sum(map(int, input().split()))))")),
    "blank lines": (ADD, _fenced(PRINTED + "\nprint()\nprint()")),
    "a sleep": (ADD, _fenced("import time\ntime.sleep(0.1)\n" + PRINTED)),
    "half a second of work": (DOUBLE, _fenced("sum(range(10**7))\n" + RIGHT)),
    "random numbers": (DOUBLE, _fenced("import random\nrandom.random()\n" + RIGHT)),
    "recursion": (DOUBLE, _fenced("def f(x):\n    return 0 if x == 0 else 2 + f(x - 1)")),
    "a cache": (DOUBLE, _fenced("from functools import lru_cache\n@lru_cache(None)\n" + RIGHT)),
    "data classes": (
        DOUBLE,
        _fenced(
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(x):\n    return A(x).x + A(x).x"
        ),
    ),
    "typing": (DOUBLE, _fenced("from typing import *\ndef f(x: Optional[int]) -> int:\n    return 2 * x")),
    "prints while it works": (DOUBLE, _fenced("def f(x):\n    print('debug', x)\n    return 2 * x")),
    "a method": (_calls(([2], 4), entry_point="Solution().f"), _fenced("class Solution:\n    def f(self, x): return 2 * x")),
    "YES": (_stdin(("1", "YES\n")), _fenced("input()\nprint('Yes')")),
    "no": (_stdin(("1", "No\n")), _fenced("input()\nprint('NO')")),
    "more digits": (_stdin(("1", "0.3333\n")), _fenced("print(0.33330000000001)")),
    "an exponent": (_stdin(("1", "100000.0\n")), _fenced("print('1e5')")),
    "another order": (_stdin(("1", "1\n2\n3\n"), checker="any_order"), _fenced("print('3\\n1\\n2')")),
    "words on other lines": (_stdin(("1", "1 2 3\n"), checker="words"), _fenced("print('1\\n2\\n3')")),
    "a checker of its own": (
        _stdin(("6", "1 6\n"), checker={"code": "def check(i, e, o):\n    a, b = map(int, o.split())\n    return a * b == int(i)"}),
        _fenced("input()\nprint(2, 3)"),
    ),
    # what functions return
    "a tuple for a list": (_calls(([], [1, 2])), _fenced("def f(): return (1, 2)")),
    "a float that is whole": (_asserts("assert f(2) == 4"), _fenced("def f(x): return 2.0 * x")),
    "an int for a float": (_calls(([], 2.0)), _fenced("def f(): return 2")),
    "0 for False": (_asserts("assert f(1) == False"), _fenced("def f(x): return 0")),
    "a default dictionary": (
        _calls(([], {"a": 1})),
        _fenced("from collections import defaultdict\ndef f():\n    d = defaultdict(int)\n    d['a'] += 1\n    return d"),
    ),
    "a counter": (_asserts("assert f('aa') == {'a': 2}"), _fenced("from collections import Counter\ndef f(s): return Counter(s)")),
    "a named tuple": (
        _asserts("assert f() == (1, 2)"),
        _fenced("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)"),
    ),
    "a generator": (_asserts("assert list(f(3)) == [0, 1, 2]"), _fenced("def f(n):\n    yield from range(n)")),
    "a range": (_asserts("assert list(f(3)) == [0, 1, 2]"), _fenced("def f(n): return range(n)")),
    "a map": (_asserts("assert tuple(f([1, 2])) == (2, 4)"), _fenced("def f(xs): return map(lambda x: 2 * x, xs)")),
    "dictionary keys": (_asserts("assert sorted(f()) == ['a', 'b']"), _fenced("def f(): return {'b': 1, 'a': 2}.keys()")),
    "values as a set": (_asserts("assert set(f()) == {1}"), _fenced("def f(): return {'b': 1, 'a': 1}.values()")),
    "a match": (_asserts("assert f('ab')\nassert not f('b')"), _fenced("import re\ndef f(s): return re.match('a', s)")),
    # asserts that are no calls
    "a loop": (_asserts("for x in range(20):\n    assert f(x) == 2 * x"), _fenced(RIGHT)),
    "two calls": (_asserts("assert f(f(1)) == 4"), _fenced(RIGHT)),
    "a condition": (_asserts("assert f(3) in (5, 6)"), _fenced(RIGHT)),
    "a tolerance": (_asserts("x = f(0.15)\nassert abs(x - 0.3) < 1e-9"), _fenced(RIGHT)),
    "changed in place": (_asserts("a = [3, 1]\nf(a)\nassert a == [1, 3]"), _fenced("def f(a): a.sort()")),
    "an exception that is expected": (
        _asserts("try:\n    f(None)\n    ok = False\nexcept Exception:\n    ok = True\nassert ok"),
        _fenced(RIGHT),
    ),
    "linked lists": (
        _asserts("assert same(f(nodes([1, 2, 3])), nodes([3, 2, 1]))", prelude=LIST, entry_point="f"),
        _fenced("def f(head):\n    last = None\n    while head:\n        head.next, last, head = last, head, head.next\n    return last"),
    ),
    "its own class": (
        _asserts("assert f([Pair(1, 2), Pair(3, 4)]) == 10"),
        _fenced("class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\ndef f(ps): return sum(p.a + p.b for p in ps)"),
    ),
    "set-up after it": (
        _asserts("assert f(root) == 3", setup="root = Tree(1)\nroot.left = Tree(2)"),
        _fenced(
            "class Tree:\n    def __init__(self, v): self.v, self.left = v, None\n"
            "def f(t): return t.v + (f(t.left) if t.left else 0)"
        ),
    ),
    "a function named like a builtin": (_asserts("assert sum(10, 15) == 25"), _fenced("def sum(a, b): return a + b")),
}  # fmt: skip
