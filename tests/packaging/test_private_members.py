"""Private members of vLLM, Ray and Megatron that the product touches are those of docs/private_members.md."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_paths()["purelib"])
LIBRARIES = ("vllm", "ray", "megatron")
PRIVATE = re.compile(r"_[A-Za-z]\w*")
OTHERS = set(
    re.findall(
        r"\w+",
        """
        _exit _getframe _current_frames _actions _HelpAction _add_action _option_string_actions _replace _run
        _run_exitfuncs _is_protocol _parent_cancel_requested _parent_task
        _parameters _buffers _modules _cdata _foreach_mul_ _extra_state _opname _schema _grouped_mm _varlen_attn _C _nn
        _c10d _varlen_attn_backward _parse_to _local_scalar_dense _is_in_bad_fork _allgather_base_
        _reduce_scatter_base_ _is_mkldnn_bf16_supported _name_or_path
        """,
    )
)
"""Members of Python's own modules, and of torch and its operators."""

LONG = 18
"""Characters of a private name from which a string of them is taken for a member that is patched or removed by name."""


def product() -> dict[str, ast.Module]:
    files = [file for package in ("scalelab", "moe") for file in sorted((ROOT / package).rglob("*.py"))]
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def own_names(trees: dict[str, ast.Module]) -> set[str]:
    """Names that the product gives: definitions, assigned attributes, fields and arguments."""
    names: set[str] = set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg | ast.keyword):
            names.add(node.arg or "")
    return names


def source(module: str) -> str:
    """Text of an installed module, or of all files of a package."""
    path = SITE.joinpath(*module.split("."))
    files = [path.with_suffix(".py")] if path.with_suffix(".py").is_file() else sorted(path.rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def touched(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Private names of the libraries, each with the file that touches it."""
    own = own_names(trees)
    for file, tree in trees.items():
        bases = dict[str, str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
                assert node.module
                bases |= {one.asname or one.name: node.module for one in node.names}
                parts = [*node.module.split("."), *(one.name for one in node.names)]
                yield from ((part, file) for part in parts if PRIVATE.fullmatch(part))
            elif isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and node.attr not in own | OTHERS:
                yield node.attr, file
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= LONG:
                if PRIVATE.fullmatch(node.value) and node.value not in own | OTHERS:
                    yield node.value, file
            elif isinstance(node, ast.ClassDef):
                yield from ((name, file) for name in inherited(node, bases))


def inherited(node: ast.ClassDef, bases: dict[str, str]) -> set[str]:
    """Private members of a library's class that a class of the product overrides or uses as its own."""
    found: set[str] = set()
    for base in node.bases:
        module = bases.get(ast.unparse(base).partition("[")[0].partition(".")[0])
        if module is None:
            continue
        text = source(module)
        used = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        used |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr.startswith("_")}
        found |= {
            name
            for name in used
            if PRIVATE.fullmatch(name) and re.search(rf"def {name}\b|self\.{name}\b|class {name}\b", text)
        }
    return found - {"__init__"}


def listed() -> dict[str, tuple[str, str]]:
    """(library, file) of each member in the table of the page."""
    page = (ROOT / "docs" / "private_members.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) ([\d.]+) \| (`[^|]+) \| [^|]{20,} \|$", page, re.MULTILINE)
    return {name: (f"{library} {version}", files) for name, library, version, files in rows}


@pytest.mark.skipif(not all((SITE / library).is_dir() for library in LIBRARIES), reason="could not import the engines")
def test_no_private_member_is_touched_that_the_page_does_not_list() -> None:
    table, found = listed(), dict[str, set[str]]()
    for name, file in touched(product()):
        found.setdefault(name, set()).add(file)
    assert {name: sorted(files) for name, files in found.items()} == {
        name: sorted(re.findall(r"`([^`]+)`", files)) for name, (_, files) in table.items()
    }


def test_the_versions_of_the_page_are_those_that_are_pinned() -> None:
    pins = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for version in {version for version, _ in listed().values()}:
        library, number = version.split()
        name = {"Megatron": "megatron-core"}.get(library, library.lower())
        assert f'"{name}=={number}"' in pins, version


def changed_elsewhere(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Members of imported packages that the product assigns, each with the file; Python's own may be changed."""
    for file, tree in trees.items():
        imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {(one.asname or one.name).split(".")[0]: one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported |= {one.asname or one.name: node.module or "" for one in node.names}
        own = {"scalelab", "moe", "tasks", *sys.stdlib_module_names}
        others = {name for name, module in imported.items() if module.partition(".")[0] not in own}
        for node in ast.walk(tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                names = {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
                if isinstance(target, ast.Attribute) and names & others:
                    yield ast.unparse(target), file


def test_no_member_of_another_package_is_changed_that_the_page_does_not_list() -> None:
    page = (ROOT / "docs" / "private_members.md").read_text(encoding="utf-8").partition("Changed for the whole")[2]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) ([\d.]+) \| `([^`]+)` \| [^|]{20,} \|$", page, re.MULTILINE)
    assert sorted(changed_elsewhere(product())) == sorted((member, file) for member, _, _, file in rows)
    for _, library, version, _ in rows:
        assert importlib.metadata.version(library).partition("+")[0] == version


def test_a_change_of_another_package_is_found_and_one_of_python_s_own_is_not() -> None:
    tree = ast.parse("import sys\nfrom numpy import linalg as la\nla.inv = sys.stdout = type(la).x = None\nself.la = 1")
    assert list(changed_elsewhere({"a.py": tree})) == [("la.inv", "a.py"), ("type(la).x", "a.py")]
