"""Forms of tests that data sets have, each with a program that is right and one that is wrong."""

# ruff: noqa: E501 - programs on one line

INCREMENT = "def f(x):\n    if x < 0: raise ValueError('negative')\n    return x + 1"
CONSTANT = "def f(x): return 0"

STACK = """
class EmptyError(Exception): pass
class Stack:
    SIZE = 3
    def __init__(self, items=()): self._items = list(items)
    @classmethod
    def of(cls, *items): return cls(items)
    def push(self, x): self._items.append(x); return self
    def pop(self):
        if not self._items: raise EmptyError('empty')
        return self._items.pop()
    @property
    def top(self): return self._items[-1]
    def __len__(self): return len(self._items)
    def __iter__(self): return iter(self._items)
    def __contains__(self, x): return x in self._items
    def __getitem__(self, place): return self._items[place]
    def __setitem__(self, place, x): self._items[place] = x
    def __eq__(self, other): return isinstance(other, Stack) and self._items == other._items
    def __add__(self, other): return Stack(self._items + other._items)
    def __str__(self): return f'Stack({self._items})'
    def __bool__(self): return bool(self._items)
    def __enter__(self): return self
    def __exit__(self, *_): self._items.clear()
"""
NO_STACK = STACK.replace("self._items.append(x)", "self._items = [x]")

FORMS = {
    "pytest functions": ("def test_a():\n    assert f(1) == 2\ndef test_b():\n    x = 3\n    assert f(x) == 4", INCREMENT, CONSTANT),
    "kodcode": ("from solution import f\n\ndef test_a():\n    assert f(1) == 2\n", INCREMENT, CONSTANT),
    "import of the module": ("import solution\ndef test_a():\n    assert solution.f(1) == 2\n", INCREMENT, CONSTANT),
    "import under another name": ("from solution import f as g\ndef test_a():\n    assert g(1) == 2\n", INCREMENT, CONSTANT),
    "import of everything": ("from solution import *\ndef test_a():\n    assert [f(1)] == [2]\n", INCREMENT, CONSTANT),
    "another module's name": ("from your_module.code import f\ndef test_a():\n    assert [f(1)] == [2]\n", INCREMENT, CONSTANT),
    "parameters": ("import pytest\n@pytest.mark.parametrize('x,y', [(1, 2), (3, 4)])\ndef test_a(x, y):\n    assert f(x) == y\n", INCREMENT, CONSTANT),
    "fixtures": ("import pytest\n@pytest.fixture\ndef x():\n    yield 3\ndef test_a(x):\n    assert f(x) == 4\n", INCREMENT, CONSTANT),
    "raises": ("import pytest\ndef test_a():\n    with pytest.raises(ValueError, match='neg'):\n        f(-1)\n", INCREMENT, CONSTANT),
    "approx": ("import pytest\ndef test_a():\n    assert f(1.5) == pytest.approx(2.5)\n", INCREMENT, CONSTANT),
    "test class": ("class TestF:\n    def setup_method(self): self.x = 1\n    def test_a(self):\n        assert f(self.x) == 2\n", INCREMENT, CONSTANT),
    "unittest": ("import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 1\n    def test_a(self):\n        self.assertEqual(f(self.x), 2)\n    def test_b(self):\n        with self.assertRaises(ValueError):\n            f(-1)\nif __name__ == '__main__':\n    unittest.main()", INCREMENT, CONSTANT),
    "unittest, runner": ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        for x in range(3):\n            with self.subTest(x=x):\n                self.assertEqual(f(x), x + 1)\nsuite = unittest.TestLoader().loadTestsFromTestCase(T)\nunittest.TextTestRunner().run(suite)", INCREMENT, CONSTANT),
    "raises, called": ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertRaises(ValueError, f, -1)", INCREMENT, CONSTANT),
    "check that calls itself": ("def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(5) == 6\ncheck(f)", INCREMENT, CONSTANT),
    "check of a method": ("def check(candidate):\n    assert candidate(x=1) == 2\n\ncheck(Solution().f)", "class Solution:\n    def f(self, x): return x + 1", "class Solution:\n    def f(self, x): return x"),
    "check with a loop of a method": ("def check(candidate):\n    for x in range(3):\n        assert candidate(x) == x + 1\n\ncheck(Solution().f)", "class Solution:\n    def f(self, x): return x + 1", "class Solution:\n    def f(self, x): return x"),
    "main guard": ("if __name__ == '__main__':\n    assert f(1) == 2\n    print('ok')", INCREMENT, CONSTANT),
    "expected exception": ("try:\n    f(-1)\n    assert False, 'no exception'\nexcept ValueError:\n    pass", INCREMENT, CONSTANT),
    "expected exception, else": ("try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError('no exception')", INCREMENT, CONSTANT),
    "expected exception, any": ("try:\n    f(-1)\n    assert False\nexcept Exception:\n    pass", INCREMENT, CONSTANT),
    "its text": ("ok = False\ntry: f(-1)\nexcept ValueError as error: ok = str(error) == 'negative'\nassert ok", INCREMENT, CONSTANT),
    "if and raise": ("for x in range(3):\n    if f(x) != x + 1:\n        raise RuntimeError('wrong')", INCREMENT, CONSTANT),
    "if and exit": ("import sys\nif f(1) != 2:\n    print('wrong')\n    sys.exit(1)", INCREMENT, CONSTANT),
    "counted and printed": ("good = 0\nfor x in range(3):\n    try:\n        assert f(x) == x + 1\n        good += 1\n    except AssertionError:\n        print('failed')", INCREMENT, "def f(x): return 1"),
    "helper of the tests": ("def same(x, y):\n    assert x == y, 'differs'\ndef run():\n    same(f(1), 2)\nrun()", INCREMENT, CONSTANT),
    "function of the result": ("assert f(f(1)) == 3\nassert f(f(f(1))) + f(1) == 6", INCREMENT, CONSTANT),
    "state": ("from solution import Stack\ndef test_a():\n    s = Stack()\n    s.push(1)\n    s.push(2)\n    assert s.pop() == 2\n    assert s.pop() == 1\n    assert len(s) == 0", STACK, NO_STACK),
    "state, unittest": ("import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.s = Stack()\n        self.s.push(1).push(2)\n    def test_a(self):\n        self.assertEqual(len(self.s), 2)\n        self.assertEqual(self.s.top, 2)\n        self.assertIn(1, self.s)\n    def test_b(self):\n        self.assertEqual(list(self.s), [1, 2])", STACK, NO_STACK),
    "error of its own": ("import pytest\nfrom solution import Stack, EmptyError\ndef test_a():\n    with pytest.raises(EmptyError):\n        Stack().pop()\n    assert len(Stack.of(1, 2).push(3)) == Stack.SIZE", STACK, STACK.replace("EmptyError('empty')", "KeyError('empty')")),
    "operators": ("a, b = Stack([1]), Stack([2])\nassert a + b == Stack([1, 2])\nassert a != b\nassert (a + b)[1] == 2\na[0] = 5\nassert a[0] == 5\nassert str(a) == 'Stack([5])'\nassert not Stack()\nassert isinstance(a, Stack)\nwith a as c:\n    assert len(c) == 1\nassert len(a) == 0", STACK, STACK.replace("self._items + other._items", "self._items")),
    "closure": ("c = make()\nassert [c(), c(), c()] == [1, 2, 3]", "def make():\n    n = 0\n    def count():\n        nonlocal n\n        n += 1\n        return n\n    return count", "def make(): return lambda: 1"),
    "generator": ("g = g3()\nassert next(g) == 0\nassert next(g) == 1\nassert list(g) == [2]", "def g3():\n    yield from range(3)", "def g3():\n    yield from range(4)"),
    "endless generator": ("import itertools\nassert list(itertools.islice(nat(), 4)) == [0, 1, 2, 3]", "def nat():\n    n = 0\n    while True:\n        yield n\n        n += 1", "def nat():\n    while True:\n        yield 0"),
    "in place": ("x = [3, 1, 2]\nassert f(x) is None\nassert x == [1, 2, 3]", "def f(x): x.sort()", "def f(x): x.sort(reverse=True)"),
    "nodes": ("head = make([1, 2, 3])\nout = []\nwhile head:\n    out.append(head.value)\n    head = head.next\nassert out == [1, 2, 3]", "class Node:\n    def __init__(self, v): self.value, self.next = v, None\ndef make(items):\n    head = None\n    for x in reversed(items):\n        node = Node(x); node.next = head; head = node\n    return head", "class Node:\n    def __init__(self, v): self.value, self.next = v, None\ndef make(items):\n    return Node(1)"),
    "date": ("import datetime\nassert f(2020) == datetime.date(2020, 1, 1)", "import datetime\ndef f(y): return datetime.date(y, 1, 1)", "import datetime\ndef f(y): return datetime.date(y, 1, 2)"),
    "fraction": ("from fractions import Fraction\nassert f(2) == Fraction(1, 2)", "from fractions import Fraction\ndef f(x): return Fraction(1, x)", "from fractions import Fraction\ndef f(x): return Fraction(1, x + 1)"),
    "decimal": ("from decimal import Decimal\nassert f() == Decimal('0.30')", "from decimal import Decimal\ndef f(): return Decimal('0.1') + Decimal('0.2')", "def f(): return 0.1 + 0.2"),
    "bytearray": ("assert f() == bytearray(b'ab')", "def f(): return bytearray(b'ab')", "def f(): return bytearray(b'a')"),
    "deque": ("from collections import deque\nassert f() == deque([1, 2])", "from collections import deque\ndef f(): return deque([1, 2])", "def f(): return [1, 2]"),
    "time span": ("from datetime import timedelta, datetime\nassert f(1) == timedelta(hours=1)\nassert g() == datetime(2020, 1, 1, 5)", "from datetime import timedelta, datetime\ndef f(h): return timedelta(hours=h)\ndef g(): return datetime(2020, 1, 1, 5)", "from datetime import timedelta, datetime\ndef f(h): return timedelta(hours=h)\ndef g(): return datetime(2020, 1, 1, 6)"),
    "named tuple": ("p = f()\nassert p.x == 1 and p == (1, 2)", "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(2, 2)"),
    "callback": ("assert apply(lambda x: x * 2, 3) == 6\nfor n in (1, 2):\n    assert apply(lambda x: x * 2, n) == 2 * n", "def apply(g, x): return g(x)", "def apply(g, x): return x"),
    "printed": ("def test_a(capsys):\n    hello(3)\n    assert capsys.readouterr().out == 'hello 3\\n'\n    hello(4)\n    out, err = capsys.readouterr()\n    assert out.strip() == 'hello 4'", "def hello(x): print('hello', x)", "def hello(x): print('hello 3')"),
    "printed, redirected": ("import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    hello(3)\nassert out.getvalue() == 'hello 3\\n'", "def hello(x): print('hello', x)", "def hello(x): pass"),
    "printed, patched": ("import io, unittest\nfrom unittest.mock import patch\nclass T(unittest.TestCase):\n    @patch('sys.stdout', new_callable=io.StringIO)\n    def test_a(self, out):\n        hello(3)\n        self.assertEqual(out.getvalue().strip(), 'hello 3')", "def hello(x): print('hello', x)", "def hello(x): pass"),
    "constant": ("from solution import LIMIT, f\nassert LIMIT == 10 and f(LIMIT) == 11", INCREMENT + "\nLIMIT = 10", INCREMENT + "\nLIMIT = 11"),
    'async test': ('import asyncio\nimport pytest\n@pytest.mark.asyncio\nasync def test_a():\n    assert await f(1) == 2\n    assert await f(5) == 6', 'import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1', 'async def f(x): return 2'),
    'async case': ('import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test_a(self):\n        self.assertEqual(await f(1), 2)\n        self.assertEqual(await f(7), 8)', 'async def f(x): return x + 1', 'async def f(x): return 2'),
    'async gen': ('import asyncio\nasync def collect():\n    return [x async for x in f(3)]\ndef test_a():\n    assert asyncio.run(collect()) == [0, 1, 2]', 'async def f(n):\n    for i in range(n): yield i', 'async def f(n):\n    yield 0'),
    'async with': ('import asyncio\nasync def main():\n    async with Box() as b:\n        return await b.get()\ndef test_a():\n    assert asyncio.run(main()) == 5', 'class Box:\n    async def __aenter__(self):\n        self.x = 5\n        return self\n    async def __aexit__(self, *a): self.x = 0\n    async def get(self): return self.x', 'class Box:\n    async def __aenter__(self):\n        self.x = 4\n        return self\n    async def __aexit__(self, *a): self.x = 0\n    async def get(self): return self.x'),
    'monkeypatch input': ("def test_a(monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda *a: '3')\n    assert f() == 4\n    monkeypatch.setattr('builtins.input', lambda *a: '7')\n    assert f() == 8", 'def f():\n    return int(input()) + 1', 'def f():\n    input()\n    return 4'),
    'mock side effect': ("from unittest.mock import patch\ndef test_a():\n    with patch('builtins.input', side_effect=['3', '5']):\n        assert f() == 8", "def f():\n    return int(input('a')) + int(input('b'))", 'def f():\n    return 2 * int(input())'),
    'mock decorator': ("from unittest.mock import patch\n@patch('builtins.input', side_effect=['2', '9'])\ndef test_a(mocked):\n    assert f() == 11\n    assert mocked.call_count == 2", "def f():\n    return int(input('a')) + int(input('b'))", 'def f():\n    input()\n    return 11'),
    'stdin and capsys': ("import io\ndef test_a(monkeypatch, capsys):\n    monkeypatch.setattr('sys.stdin', io.StringIO('3\\n4\\n'))\n    main()\n    assert capsys.readouterr().out.strip() == '7'", 'def main():\n    print(int(input()) + int(input()))', 'def main():\n    print(8)'),
    'subclass': ("class Square(Shape):\n    def __init__(self, a): self.a = a\n    def area(self): return self.a ** 2\ndef test_a():\n    assert Square(3).describe() == 'area 9'\n    assert Square(4).describe() == 'area 16'", "class Shape:\n    def area(self): raise NotImplementedError\n    def describe(self): return f'area {self.area()}'", "class Shape:\n    def area(self): raise NotImplementedError\n    def describe(self): return f'area {9}'"),
    'subclass abstract': ("import pytest\ndef test_a():\n    with pytest.raises(TypeError):\n        Shape()\n    class Square(Shape):\n        def area(self): return 9\n    assert Square().describe() == 'area 9'", "from abc import ABC, abstractmethod\nclass Shape(ABC):\n    @abstractmethod\n    def area(self): ...\n    def describe(self): return f'area {self.area()}'", "class Shape:\n    def area(self): raise NotImplementedError\n    def describe(self): return f'area {self.area()}'"),
    'issubclass': ("def test_a():\n    assert issubclass(Dog, Animal)\n    assert isinstance(Dog(), Animal)\n    assert Dog().speak() == 'woof'", "class Animal: pass\nclass Dog(Animal):\n    def speak(self): return 'woof'", "class Animal: pass\nclass Dog:\n    def speak(self): return 'woof'"),
    'parametrize class': ("import pytest\n@pytest.mark.parametrize('x', [1, 5])\nclass TestF:\n    def test_a(self, x):\n        assert f(x) == x + 1", 'def f(x): return x + 1', 'def f(x): return 2'),
    'fixture params': ('import pytest\n@pytest.fixture(params=[1, 5])\ndef x(request):\n    return request.param\ndef test_a(x):\n    assert f(x) == x + 1', 'def f(x): return x + 1', 'def f(x): return 2'),
    'fixture autouse': ('import pytest\nseen = []\n@pytest.fixture(autouse=True)\ndef before():\n    reset()\ndef test_a():\n    add(3)\n    assert total() == 3\ndef test_b():\n    add(4)\n    assert total() == 4', 'T = [0]\ndef reset(): T[0] = 0\ndef add(x): T[0] += x\ndef total(): return T[0]', 'T = [0]\ndef reset(): pass\ndef add(x): T[0] += x\ndef total(): return T[0]'),
    'fixture scope yield': ("import pytest\n@pytest.fixture(scope='module')\ndef acc():\n    a = Acc()\n    yield a\n    a.close()\ndef test_a(acc):\n    acc.add(2)\n    assert acc.total == 2", 'class Acc:\n    total = 0\n    def add(self, x): self.total += x\n    def close(self): pass', 'class Acc:\n    total = 0\n    def add(self, x): pass\n    def close(self): pass'),
    'decorator program': ('@timed\ndef add(a, b):\n    return a + b\nassert add(1, 2) == 3\nassert add.calls == 1', 'def timed(g):\n    def w(*a):\n        w.calls += 1\n        return g(*a)\n    w.calls = 0\n    return w', 'def timed(g):\n    def w(*a):\n        return g(*a)\n    w.calls = 0\n    return w'),
}  # fmt: skip
"""Name → (asserts, right program, wrong program)."""
