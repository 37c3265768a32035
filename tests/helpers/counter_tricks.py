"""Programs that are wrong, and try to have tests count assertions that did not hold, or none."""

# ruff: noqa: E501 - programs on one line

_PYTEST = "from solution import f\ndef test_a():\n    assert f(1) == 2\ndef test_b():\n    assert [f(x) for x in range(3)] == [1, 2, 3]"
_UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\n    def test_b(self):\n        self.assertTrue(f(3) == 4)\nunittest.main()"
_CHECK = "def check(candidate):\n    for x in range(3):\n        assert candidate(x) == x + 1\ncheck(f)"
_RAISES = "import pytest\ndef test_a():\n    with pytest.raises(ValueError):\n        f(-1)\n    assert [f(1)] == [2]"
_CASES = {"pytest": _PYTEST, "unittest": _UNITTEST, "check": _CHECK, "raises": _RAISES}

_EVIL = """
class Evil:
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __bool__(self): return True
    def __hash__(self): return 0
    def __iter__(self): return iter([])
    def __len__(self): return 0
    def __call__(self, *a, **k): return Evil()
    def __getattr__(self, name): return Evil()
    def __contains__(self, x): return True
    def __sub__(self, o): return self
    __rsub__ = __add__ = __radd__ = __mul__ = __mod__ = __abs__ = __neg__ = __sub__
    def __lt__(self, o): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __float__(self): return 0.0
    def __int__(self): return 0
    def __isub__(self, o): return self
"""

_PATCHES = {
    "patched assertion error": "import builtins\nclass AssertionError(Exception): pass\nbuiltins.AssertionError = Exception\ndef f(x): return 0",
    "patched unittest": "import unittest\nfor n in dir(unittest.TestCase):\n    if n.startswith('assert'): setattr(unittest.TestCase, n, lambda *a, **k: None)\ndef f(x): return 0",
    "patched unittest's runner": "import unittest\nunittest.main = lambda *a, **k: None\nunittest.TestCase.run = lambda *a, **k: None\ndef f(x): return 0",
    "a pytest of its own": "import sys, types\nm = types.ModuleType('pytest'); m.raises = lambda *a, **k: __import__('contextlib').suppress(BaseException)\nsys.modules['pytest'] = m\ndef f(x): return 0",
    "a solution of its own": "import sys, types\nm = types.ModuleType('solution'); m.f = lambda x: x\nsys.modules['solution'] = m\ndef f(x): return 0",
    "patched checking": "import sys\nfor n, m in list(sys.modules.items()):\n    if n.startswith('tasks'):\n        for k, v in list(vars(m).items()):\n            if callable(v) and k[0] != '_': setattr(m, k, lambda *a, **kw: ['done', 99])\ndef f(x): return 0",
    "patched counter": "from tasks.sandbox import counting\ncounting.Probe.held = lambda self: setattr(self, 'ran', 99)\ncounting.Probe.ran = 99\ndef f(x): return 0",
    "counter by its name": "import builtins\nclass P:\n    ran = reached = 99; guessing = False; swallowed = None; entered = set()\n    def __getattr__(self, n): return lambda *a: ()\nbuiltins.__probe__ = __probe__ = P()\ndef f(x): return 0",
    "forged count": "import os\nos.write(3, b'[\"done\", 99]\\n' * 9)\ndef f(x): return 0",
    "forged count, then exit": "import os\ndef f(x):\n    os.write(3, b'[\"done\", 99]\\n')\n    os._exit(0)",
    "forged calls": "import os\nos.write(3, b'[\"calls\", []]\\n')\nos._exit(0)",
    "forged answers of another shape": "import os\nos.write(3, b'[\"value\", 0, null]\\n[\"value\", {\"$answer\": [0, 0]}, null]\\n')\nos._exit(0)",
    "forged vacuity": "import os\nos.write(3, b'[\"vacuous\", \"\"]\\n')\nos._exit(0)",
    "an unknown value": "import os\nos.write(3, b'[\"value\", {\"$other\": {\"type\": \"Remote\", \"part\": 0, \"unknown\": true, \"own\": true}}, null]\\n' * 3)\nos._exit(0)",
    "an own object": "import os\nos.write(3, b'[\"value\", {\"$other\": {\"type\": \"f\", \"part\": 0, \"own\": true, \"named\": \"F\", \"fields\": {\"_facts\": {\"own\": true}}}}, null]\\n' * 3)\nos._exit(0)",
    "a skipped test": "import unittest\ndef f(x): raise unittest.SkipTest('no need')",
    "a skipped test of pytest": "class Skipped(Exception): __module__ = 'pytest'\nSkipped.__qualname__ = 'skip.Exception'\ndef f(x): raise Skipped",
    "a skip of the harness": "from tasks.sandbox import testing\ndef f(x): raise testing._SkippedError",
    "a forged skip": "import os\nos.write(3, b'[\"raised\", \"\", [[\"unittest.case\", \"SkipTest\"], [\"builtins\", \"Exception\"]], []]\\n' * 9)\nos._exit(0)",
    "end of iteration": "def f(x): raise StopIteration",
    "exit": "def f(x): raise SystemExit(0)",
    "interrupt": "def f(x): raise KeyboardInterrupt",
    "generator exit": "def f(x): raise GeneratorExit",
    "no such name": "def g(x): return 0",
    "an unknown error of the tests": "from tasks.sandbox.transcript import UnknownError\ndef f(x): raise UnknownError",
    "always equal": _EVIL + "def f(x): return Evil()",
    "always equal, a class": _EVIL + "class f(Evil):\n    def __init__(self, *a): pass",
    "always equal text": "class A(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef f(x): return A('x')",
    "always equal fraction": "from fractions import Fraction\nclass A(Fraction):\n    def __eq__(self, o): return True\n    __hash__ = Fraction.__hash__\ndef f(x): return A(1, 3)",
    "always equal date": "import datetime\nclass A(datetime.date):\n    def __eq__(self, o): return True\ndef f(x): return A(2020, 1, 1)",
    "always equal named tuple": "from collections import namedtuple\nclass A(namedtuple('A', 'x')):\n    def __eq__(self, o): return True\ndef f(x): return A(0)",
    "named tuple with fields of the counter": "import os\nos.write(3, b'[\"value\", {\"$named\": [[\"__eq__\", \"ran\"], [1, 2]]}, null]\\n' * 9)\nos._exit(0)",
    "mock": "from unittest.mock import ANY, MagicMock\ndef f(x): return ANY",
    "magic mock": "from unittest.mock import MagicMock\ndef f(x): return MagicMock()",
    "a type of the tests": "class T:\n    def __eq__(self, o): return True\n    def assertEqual(self, *a): pass\ndef f(x): return T()",
    "approximately anything": "class approx:\n    def __init__(self): self._expected = 2; self._absolute = 1e99; self._relative = 1e99\n    def __eq__(self, o): return True\nclass _Approx(approx): pass\ndef f(x): return _Approx()",
    "changed arguments": "def f(x, seen=[]):\n    seen.append(x)\n    return None",
    "a thread that patches": "import threading, builtins\ndef work():\n    while True: builtins.all = builtins.any = lambda *a: True\nthreading.Thread(target=work, daemon=True).start()\ndef f(x): return 0",
    "profile": "import sys\nsys.setprofile(lambda *a: None)\nsys.setrecursionlimit(60)\ndef f(x): return 0",
    "exit handlers": "import atexit, os\natexit.register(lambda: os.write(3, b'[\"done\", 3]\\n'))\ndef f(x): return 0",
    "frames": "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        for v in list(frame.f_locals.values()):\n            if type(v).__name__ == 'Probe': v.ran = 99\n        frame = frame.f_back\n    return 0",
    "garbage": "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if type(o).__name__ in ('Probe', 'Transcript'): o.ran = o.used = 99\n    return 0",
}  # fmt: skip

_WEAK = {
    "method of the result": ("assert f('a').startswith('b')", _EVIL + "def f(x): return Evil()"),
    "method of an own object's result": ("s = Solver()\nassert s.f('a').startswith('b')", _EVIL + "class Solver:\n    def f(self, x): return Evil()"),
    "membership": ("for x in range(2):\n    assert x in f(x)", _EVIL + "def f(x): return Evil()"),
    "order": ("for x in range(2):\n    assert 0 < f(x) < 9", _EVIL + "def f(x): return Evil()"),
    "distance": ("for x in range(2):\n    assert abs(f(x) - 0.5) < 1e-6", _EVIL + "def f(x): return Evil()"),
    "distance of an own object": ("v = Vector(3, 4)\nassert abs(v.norm() - 5) < 1e-6", _EVIL + "class Vector(Evil):\n    def __init__(self, x, y): pass\n    def norm(self): return Evil()"),
    "equality of an own object": ("v = Vector(3, 4)\nassert v.norm() == 5", _EVIL + "class Vector(Evil):\n    def __init__(self, x, y): pass\n    def norm(self): return self"),
    "difference": ("assert f(1) - 2 == 0\nassert [f(x) for x in (1, 2)]", _EVIL + "def f(x): return Evil()"),
    "class in small letters": ("s = f(1)\nassert s.x == 2", _EVIL + "class f(Evil):\n    def __init__(self, x): pass"),
    "no items to check": ("for x in f(3):\n    assert x == 1", "def f(x): return []"),
    "no branch to check": ("x = f(3)\nif x is not None:\n    assert x == 4", "def f(x): return None"),
    "all of nothing": ("assert f(1) == 2 if f(0) else False", "def f(x): return 0"),
    "an end in a map": ("assert all(map(lambda x: f(x) == x, [1, 2]))", "def f(x): raise StopIteration"),
    "an end in a map of the function": ("assert list(map(f, [1, 2])) == [2, 3]", "def f(x): raise StopIteration"),
    "a swallowed assertion": ("try:\n    assert f(1) == 2\nexcept AssertionError:\n    print('no')\nassert [f(0)]", "def f(x): return 0"),
    "a bare except": ("try:\n    f(-1)\n    assert False\nexcept:\n    pass", "def f(x): return 0"),
    "one input more than there is": ("import builtins\nit = iter(['1', '2'])\nbuiltins.input = lambda *_: next(it)\nfor got, want in zip(map(f, [0, 0]), [1, 2]):\n    assert got == want", "n = 0\ndef f(x):\n    global n\n    n += 1\n    if n == 1: return int(input())\n    while True: input()"),
    "a forged request for input": ("import builtins\nbuiltins.input = lambda *_: '3'\nassert f() == 4", "import os\ndef f():\n    os.write(3, b'[\"input\", [], \"\"]\\n')\n    os._exit(0)"),
    "an awaited object": ("import asyncio\nassert asyncio.run(f(1)) == 2", _EVIL + "async def f(x): return Evil()"),
    "what an extended class gives": ("class Mine(Base):\n    def one(self): return 1\nassert Mine().two() == 2", _EVIL + "class Base:\n    def __init_subclass__(cls): cls.one = cls.two\n    def two(self): return Evil()"),
}  # fmt: skip

COUNTER_TRICKS = {
    **{f"{name}, {form}": (tests, code) for name, code in _PATCHES.items() for form, tests in _CASES.items()},
    **_WEAK,
}
"""Name → (asserts, wrong program)."""
