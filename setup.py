"""Put the whole lab inside of `scalelab` in a wheel: names like `tasks` belong to everybody.

In a checkout `moe`, `tasks` and `experiments` are packages beside `scalelab`. A wheel installs them as `scalelab.moe`,
`scalelab.tasks` and `scalelab.experiments`, and import statements are changed to match. Editable installs use the
checkout as it is.
"""

import ast
import re
import tomllib
from pathlib import Path
from sys import argv

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

BESIDE = ("experiments", "moe", "tasks")
FILES = {"experiments": ["**/*.gin"], "moe": ["py.typed"], "tasks": ["py.typed"]}
OWN_FILES = {"scalelab": ["py.typed", "view/static/*", "view/templates/*", "bases/*/*", "recorded/**/*"]}


def inside(name: str) -> str:
    """The name of a package or module in the wheel."""
    return f"scalelab.{name}" if name.partition(".")[0] in BESIDE else name


def with_new_names(source: str, file: str) -> str:
    """Python source whose import statements say the names of the wheel.

    Args:
        source: a module of the checkout.
        file: its name, for the message.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.Import) and any(inside(one.name) != one.name for one in node.names):
            raise SystemExit(f"{file}:{node.lineno}: write `from PACKAGE import NAME`, which can be renamed in a wheel")
        if isinstance(node, ast.ImportFrom) and node.level == 0 and inside(node.module) != node.module:
            line, start = lines[node.lineno - 1], node.col_offset
            lines[node.lineno - 1] = line[:start] + line[start:].replace(node.module, inside(node.module), 1)
    return "".join(lines)


def with_absolute_links(readme: str, home: str) -> str:
    """README for a package index, which has none of the files that it links to, and draws no relative picture.

    Args:
        readme: Markdown of the checkout.
        home: the repository's address.
    """
    drawn = home.replace("github.com", "raw.githubusercontent.com") + "/main/"
    readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{drawn}", readme)
    return re.sub(r"((?<!!)\[[^]!]*\]\()(?!https?:|#)", rf"\g<1>{home}/blob/main/", readme)


class BuildPy(build_py):
    """Copy the modules, then change their import statements."""

    def build_module(self, module, module_file, package):
        """Copy one module."""
        copied, done = super().build_module(module, module_file, package)
        path = Path(copied)
        path.write_text(with_new_names(path.read_text(encoding="utf-8"), module_file), encoding="utf-8")
        return copied, done


home = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]
shown = {
    "long_description": with_absolute_links(Path("README.md").read_text(encoding="utf-8"), home),
    "long_description_content_type": "text/markdown",
}
names = find_packages(include=["scalelab", "scalelab.*", *BESIDE, *(f"{name}.*" for name in BESIDE)])
if "editable_wheel" in argv:
    setup(packages=names, package_data=OWN_FILES | FILES, **shown)
else:
    setup(
        packages=[inside(name) for name in names],
        package_dir={inside(name): name.replace(".", "/") for name in names},
        package_data=OWN_FILES | {inside(name): files for name, files in FILES.items()},
        cmdclass={"build_py": BuildPy},
        **shown,
    )
