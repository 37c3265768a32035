"""Run test functions and classes as pytest and `unittest` do, and stand in for pytest, in the process of the tests."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tasks.sandbox.counting import Probe
from tasks.sandbox.remote import Remote
from tasks.sandbox.transcript import OWN_MODULES


class _Output(NamedTuple):
    out: str
    err: str


class _SkippedError(Exception):
    """A test says that it shall not run."""


def install(source: str) -> None:
    """Make `import pytest` work without pytest, and `unittest.main()` return, for tests with this source."""
    if "pytest" in source:
        sys.modules["pytest"] = _pytest()
    if "unittest" in source:
        unittest = importlib.import_module("unittest")
        for name in ("main", "TextTestRunner"):
            setattr(unittest, name, _idle)


def _idle(*_: Any, **__: Any) -> Any:
    """Do nothing where tests start a runner, also `unittest.TextTestRunner().run(suite)`: they are run afterwards."""
    return types.SimpleNamespace(run=_idle, wasSuccessful=lambda: True, failures=[], errors=[])


def run_all(namespace: dict[str, Any], probe: Probe) -> None:
    """Run `check(candidate)`, test functions and test classes that the tests have not called themselves.

    Raises:
        Exception: of the first that fails.
    """
    found = [(name, value) for name, value in namespace.items() if _is_of_tests(value)]
    for name, value in found:
        if name in probe.entered:
            continue
        if name == "check" and isinstance(value, types.FunctionType) and "candidate" in namespace:
            _run(functools.partial(value, namespace["candidate"]), probe)
        elif name.startswith("test") and isinstance(value, types.FunctionType):
            _run_function(value, namespace, probe)
        elif isinstance(value, type) and _is_test_case(value):
            _run_case(value, probe)
        elif isinstance(value, type) and name.startswith("Test"):
            _run_class(value, namespace, probe)


def _is_of_tests(value: Any) -> bool:
    return isinstance(value, type | types.FunctionType) and value.__module__ in OWN_MODULES


def _is_test_case(kind: type) -> bool:
    unittest = sys.modules.get("unittest")
    return unittest is not None and issubclass(kind, unittest.TestCase)


def _run(test: Callable[[], Any], probe: Probe) -> None:
    unittest = sys.modules.get("unittest")
    skips: tuple[type[Exception], ...] = (_SkippedError, *([] if unittest is None else [unittest.SkipTest]))
    with contextlib.suppress(*skips, *probe.skipped()):
        test()


def _finish(value: Any) -> None:
    """Run what a test returned, if it is one of those that await."""
    if isinstance(value, types.CoroutineType):
        importlib.import_module("asyncio").run(value)


def _run_case(kind: Any, probe: Probe) -> None:
    """Run a `unittest.TestCase`."""
    if getattr(kind, "__unittest_skip__", False):
        return
    _run(kind.setUpClass, probe)
    for name in sorted(name for name in dir(kind) if name.startswith("test")):
        if getattr(getattr(kind, name), "__unittest_expecting_failure__", False):
            continue
        case = kind(name)

        def test(case: Any = case, name: str = name) -> None:
            for step in ("setUp", "asyncSetUp", name, "asyncTearDown", "tearDown"):
                if hasattr(case, step):
                    _finish(getattr(case, step)())

        _run(test, probe)
        _run(case.doCleanups, probe)
    _run(kind.tearDownClass, probe)


def _run_class(kind: type, namespace: dict[str, Any], probe: Probe) -> None:
    """Run a test class of pytest's."""
    if "__init__" in vars(kind):
        return
    for name in [name for name in dir(kind) if name.startswith("test")]:
        one = kind()
        for before in ("setup_class", "setup_method", "setup"):
            if before in dir(kind):
                _run(functools.partial(_with_few, getattr(one, before)), probe)
        method = getattr(one, name)
        if callable(method):
            _run_function(method, namespace, probe)
        if "teardown_method" in dir(kind):
            _run(functools.partial(_with_few, one.teardown_method), probe)


def _with_few(method: Any) -> None:
    """Call a method that may take the test's name."""
    count = method.__code__.co_argcount
    method(*[None] * (count - 1))


def _run_function(function: Any, namespace: dict[str, Any], probe: Probe) -> None:
    """Run a test function once for each of its parameters, with its fixtures."""
    method = isinstance(function, types.MethodType)
    owner = function.__self__ if method else None
    marks = [*getattr(function, "_marks", []), *getattr(owner, "_marks", [])]
    if any(mark == "skip" for mark in marks):
        return
    names = function.__code__.co_varnames[method : function.__code__.co_argcount]
    needed = names[: len(names) - len(function.__defaults__ or ())]
    of_class = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    functions = (types.FunctionType, types.MethodType)
    found = [one for one in (*namespace.items(), *of_class.items()) if isinstance(one[1], functions)]
    automatic = [name for name, value in found if getattr(value, "_is_automatic", False)]
    varied = [name for name, value in found if getattr(value, "_params", None) and name in (*needed, *automatic)]
    choices = [[{name: value} for value in dict(found)[name]._params] for name in varied]
    for chosen in itertools.product(*[mark for mark in marks if mark != "skip"], *choices):
        given = {name: value for one in chosen for name, value in one.items()}
        fixtures = _Fixtures(namespace, owner, {name: given.pop(name) for name in varied})

        def test(given: dict[str, Any] = given, fixtures: _Fixtures = fixtures) -> None:
            for name in automatic:
                fixtures.get(name)
            _finish(function(**given, **{name: fixtures.get(name) for name in needed if name not in given}))

        _run(test, probe)
        fixtures.end()


class _Fixtures:
    """Fixtures of one run of a test function: each is made once, and ended in the opposite order."""

    def __init__(self, namespace: dict[str, Any], owner: Any, chosen: dict[str, Any]) -> None:
        self._namespace, self._owner, self._chosen = namespace, owner, chosen
        self._made: dict[str, Any] = {}
        self._ends: list[Iterator[Any]] = []

    def get(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Any:
        if name in _BUILT_IN:
            return self._begun(_BUILT_IN[name]())
        function: Any = self._namespace.get(name) or getattr(self._owner, name, None)
        if not getattr(function, "_is_fixture", False):
            raise LookupError(f"no fixture {name}")
        if function._kept:  # of a module or a session: the tests share it
            return function._kept[0]
        method = isinstance(function, types.MethodType)
        names = function.__code__.co_varnames[method : function.__code__.co_argcount]
        request = types.SimpleNamespace(param=self._chosen.get(name), addfinalizer=lambda _: None)
        value = function(**{one: request if one == "request" else self.get(one) for one in names})
        value = self._begun(value) if isinstance(value, types.GeneratorType) else value
        if function._is_shared:
            function._kept.append(value)
        return value

    def _begun(self, steps: Iterator[Any]) -> Any:
        self._ends.append(steps)
        return next(steps)

    def end(self) -> None:
        for steps in reversed(self._ends):
            next(steps, None)


def _output() -> Iterator[Any]:
    """Collect what is printed, as pytest's `capsys` does."""
    before = sys.stdout

    def readouterr() -> Any:
        text = sys.stdout.getvalue() if isinstance(sys.stdout, io.StringIO) else ""
        sys.stdout = io.StringIO()
        return _Output(text, "")

    sys.stdout = io.StringIO()
    yield types.SimpleNamespace(readouterr=readouterr)
    sys.stdout = before


def _patches() -> Iterator[Any]:
    """Change attributes and items until the test ends, as pytest's `monkeypatch` does."""
    mock = importlib.import_module("unittest.mock")
    with contextlib.ExitStack() as stack:

        def set_attribute(target: Any, name: Any, *value: Any, raising: bool = True) -> None:
            if isinstance(target, str):
                target, name, value = target.rpartition(".")[0], target.rpartition(".")[2], (name,)
            where = importlib.import_module(target) if isinstance(target, str) else target
            if isinstance(where, Remote) or getattr(where, "_is_program", False):
                raise NotImplementedError("what is patched is the program's")
            stack.enter_context(mock.patch.object(where, name, *value, create=not raising))

        def set_item(where: Any, name: Any, value: Any) -> None:
            stack.enter_context(mock.patch.dict(where, {name: value}))

        environ = importlib.import_module("os").environ
        yield types.SimpleNamespace(
            setattr=set_attribute, setitem=set_item, setenv=lambda name, value: set_item(environ, name, str(value))
        )


_BUILT_IN: dict[str, Callable[[], Iterator[Any]]] = {"capsys": _output, "monkeypatch": _patches}


class _Approx:
    """A number, or numbers in a list or dict, with pytest's tolerance."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self._expected, self._nan_ok = expected, nan_ok
        self._relative = (1e-6 if abs is None else 0.0) if rel is None else rel
        self._absolute = 1e-12 if abs is None else abs

    def __eq__(self, actual: object) -> bool:
        return self._same(self._expected, actual)

    __hash__ = None  # type: ignore[assignment]

    def _same(self, expected: Any, actual: Any) -> bool:
        if isinstance(expected, dict):
            right = isinstance(actual, dict) and expected.keys() == actual.keys()
            return right and all(self._same(value, actual[key]) for key, value in expected.items())
        if isinstance(expected, list | tuple):
            right = isinstance(actual, type(expected)) and len(actual) == len(expected)
            return right and all(map(self._same, expected, actual))
        if isinstance(expected, bool | str | None) or not isinstance(actual, int | float | complex):
            return type(expected) is type(actual) and bool(expected == actual)
        if expected != expected:
            return self._nan_ok and actual != actual
        return abs(actual - expected) <= max(self._relative * abs(expected), self._absolute) or actual == expected

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"


class _Raises:
    """The context in which an exception must be raised."""

    def __init__(self, expected: Any, match: str | None) -> None:
        self._expected, self._match = expected, match
        self.value: BaseException | None = None
        self.type: type[BaseException] | None = None

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if error is None:
            raise AssertionError(f"did not raise {self._expected}")
        if not isinstance(error, self._expected):
            return False
        self.value, self.type = error, kind
        if self._match is not None and not re.search(self._match, str(error)):
            raise AssertionError(f"{str(error)[:100]!r} does not match {self._match!r}")
        return True


def _raises(expected: Any, *call: Any, match: str | None = None, **kwargs: Any) -> _Raises:
    context = _Raises(expected, match)
    if call:
        with context:
            call[0](*call[1:], **kwargs)
    return context


class _Mark:
    """Decorators `pytest.mark.…`: parameters are kept, skipped tests are skipped, other marks say nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "parametrize":
            return _parametrize
        if name in ("skip", "xfail"):
            return _skip_mark
        if name == "skipif":
            return lambda condition=True, **_: _skip_mark if condition else _same
        return _plain_mark


def _same(function: Any) -> Any:
    return function


def _plain_mark(*args: Any, **kwargs: Any) -> Any:
    return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else _same


def _skip_mark(*args: Any, **_: Any) -> Any:
    return _marked(args[0], "skip") if args and callable(args[0]) else lambda function: _marked(function, "skip")


def _parametrize(names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [value.values if isinstance(value, _Param) else (value if len(keys) > 1 else (value,)) for value in values]
    return lambda function: _marked(function, [dict(zip(keys, row, strict=True)) for row in rows])


class _Param:
    def __init__(self, *values: Any, **_: Any) -> None:
        self.values = values


def _marked(function: Any, mark: Any) -> Any:
    function._marks = [*getattr(function, "_marks", []), mark]
    return function


def _fixture_mark(*args: Any, **more: Any) -> Any:
    def mark(function: Any) -> Any:
        function._is_fixture, function._is_automatic = True, bool(more.get("autouse"))
        function._params = [
            value.values[0] if isinstance(value, _Param) else value for value in more.get("params") or ()
        ]
        function._is_shared, function._kept = more.get("scope", "function") != "function" and not function._params, []
        return function

    return mark(args[0]) if args and callable(args[0]) else mark


def _fail(reason: str = "", **_: Any) -> None:
    raise AssertionError(reason)


def _skip(reason: str = "", **_: Any) -> None:
    raise _SkippedError(reason)


def _pytest() -> types.ModuleType:
    """A module with what tests of programs use of pytest."""
    module = types.ModuleType("pytest")
    vars(module).update(raises=_raises, approx=_Approx, mark=_Mark(), param=_Param, fixture=_fixture_mark)
    vars(module).update(fail=_fail, skip=_skip, importorskip=importlib.import_module, main=_idle)
    return module
