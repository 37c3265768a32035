"""The program in a model's answer; linear in its length."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tasks.code.parsing import parse_python

LANGUAGES = ("python", "cpp", "javascript")
"""Languages of whole programs."""

_MARKS = {
    "python": ("python", "python3", "py", "py3"),
    "cpp": ("cpp", "c++", "cc", "cxx", "c"),
    "javascript": ("javascript", "js", "node", "nodejs", "cjs", "mjs"),
}
_DEFINITION = r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+{0}\b|^{0}[ \t]*[:=]"
_WHOLE = {
    "python": re.compile(r"\binput\s?\(|\bstdin\b|\bopen\s?\(\s?0|\bfileinput\b|\bos\.read\b"),
    "cpp": re.compile(r"\bmain\s?\("),
    "javascript": re.compile(r"\bstdin\b|\breadFileSync\s?\(|\breadline\b"),
}
_MARKED = {mark for marks in _MARKS.values() for mark in marks}
# Marks of byte order and joints without width, which editors and web pages leave behind.
_INVISIBLE = "\ufeff\u200b\u200c\u200d\u2060"
_NO_BREAK_SPACE = "\u00a0"
_OPENING = re.compile(r"(`{3,}|~{3,})[ \t]*([\w+#]*)")
# Longer answers are no programs that anybody wrote; to read them as Python takes long.
_LONGEST_READ = 50_000
_TRIPLE = re.compile(r"""#[^\n]*|\'\'\'|\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\\.""")


@dataclass(frozen=True)
class Block:
    """A fenced block: the language that it is marked with (lower case, may be empty) and its text."""

    language: str
    text: str


def extract_code(answer: str, defines: str = "", language: str = "python") -> str:
    """The code block that holds the program.

    Blocks marked with the language come first, then unmarked ones, then any; of these the last that defines `defines`,
    or is a whole program where that is empty (reads its input, has a `main`), so that a block which only shows usage or
    output does not count; else simply the last. Without a fence, the whole answer. A block that is never closed ends
    with the answer.

    In Python, names that the block uses and other blocks define come from there (a helper in a block of its own). A
    fence inside a string ends no block, if the block is no Python otherwise.

    Args:
        answer: the answer part of a completion.
        defines: the function or class that the tests use; empty for a whole program.
        language: one of `LANGUAGES`.
    """
    chosen = _chosen(blocks(answer), answer, defines, language)
    several = answer.count("```") + answer.count("~~~") > 2  # one block has nothing inside that looks like its end
    if language != "python" or not several or _parsed(chosen) is not None:
        return chosen
    through = _chosen(blocks(answer, through_strings=True), answer, defines, language)
    return through if _parsed(through) is not None else chosen


def _chosen(found: Sequence[Block], answer: str, defines: str, language: str) -> str:
    """The program of these blocks."""
    if not found:
        return _visible(answer, language)
    looked_for = _definition(defines) if defines else _WHOLE[language]
    found = [Block(block.language, _visible(block.text, language)) for block in found]
    marked = [block.text for block in found if block.language in _MARKS[language]]
    unmarked = [block.text for block in found if not block.language]
    kinds = [texts for texts in (marked, unmarked, [block.text for block in found]) if texts]
    for texts in kinds:
        whole = [text for text in texts if looked_for.search(text)]
        if whole:
            return _with_helpers(whole[-1], texts) if language == "python" else whole[-1]
    return kinds[0][-1]


def _visible(code: str, language: str) -> str:
    """Code without invisible characters, where they would keep it from compiling."""
    code = code.lstrip(_INVISIBLE)
    if language == "python" and any(mark in code for mark in _INVISIBLE + _NO_BREAK_SPACE) and _parsed(code) is None:
        code = code.translate(dict.fromkeys(map(ord, _INVISIBLE)) | {ord(_NO_BREAK_SPACE): " "})
    return code


@lru_cache(maxsize=1024)
def _definition(name: str) -> re.Pattern[str]:
    """Pattern of a name's definition; kept, because all completions of a prompt look for the same one."""
    return re.compile(_DEFINITION.format(re.escape(name)), re.MULTILINE)


def _with_helpers(code: str, others: Sequence[str]) -> str:
    """A program after the blocks that define what it uses and does not define itself."""
    if len(others) < 2 or (tree := _parsed(code)) is None:
        return code
    missing = _used(tree) - _defined(tree) - set(vars(builtins))
    helpers: list[str] = []
    for other in reversed(others):  # of two that define a name, the later counts
        parsed = _parsed(other) if missing and other is not code else None
        defined = _top_level(parsed) if parsed is not None else set()
        if parsed is not None and missing & defined and not defined & _top_level(tree):
            helpers.insert(0, other)
            missing = (missing | _used(parsed)) - defined - set(vars(builtins))
    return "\n".join([*helpers, code])


def _parsed(code: str) -> ast.Module | None:
    if len(code) > _LONGEST_READ:
        return None
    try:
        return parse_python(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _defined(tree: ast.AST) -> set[str]:
    """Every name that is bound anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                names.add(name)
            case ast.ClassDef(name) | ast.ExceptHandler(_, str(name)):
                names.add(name)
            case ast.Import(aliases) | ast.ImportFrom(_, aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    return names


def _top_level(tree: ast.Module) -> set[str]:
    """Names that a module's own statements bind, without those inside functions and classes."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = {node.name for node in tree.body if isinstance(node, inner)}
    return named | _defined(ast.Module([node for node in tree.body if not isinstance(node, inner)], []))


def blocks(answer: str, through_strings: bool = False) -> list[Block]:
    """Every fenced block, in order.

    A fence is three or more backticks or tildes at the start of a line, perhaps indented inside a list, or after text
    that ends with it and a language.

    Args:
        answer: any text.
        through_strings: a fence inside a triple-quoted string of the block ends nothing.
    """
    found: list[Block] = []
    fence, language, indent, lines = "", "", "", list[str]()
    quote = ""
    for line in answer.split("\n"):
        text = line.strip(" \t\r" + _INVISIBLE)
        mark = _fence(text)
        rest = text[len(mark) :].strip()
        if not fence:
            quote = ""
            if mark and "`" not in rest:
                fence, language, lines = mark, (rest.lower().split() or [""])[0], []
                indent = line[: len(line) - len(line.lstrip(" \t"))]
            elif after := _after_text(text):
                fence, language, lines, indent = after[1], after[2].lower(), [], ""
        elif mark.startswith(fence) and not rest and not quote:
            found.append(Block(language, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line.removeprefix(indent))
            if through_strings:
                quote = _open_quote(line, quote)
    if fence:
        # Cut off, or closed at the end of its last line of code.
        found.append(Block(language, "\n".join(lines).rstrip().removesuffix(fence)))
    return found


def _open_quote(line: str, quote: str) -> str:
    """The triple quote in which a line of Python ends, given that in which it begins; empty for none."""
    place = 0
    while place < len(line):
        if quote:
            end = line.find(quote, place)
            if end < 0:
                return quote
            place, quote = end + 3, ""
            continue
        token = _TRIPLE.search(line, place)
        if token is None:
            return ""
        place = token.end()
        if token[0] in ("'''", '"""'):
            quote = token[0]
    return quote


def _after_text(text: str) -> re.Match[str] | None:
    """The fence that ends a line of text: with a language, or after a colon."""
    place = min((found for mark in "`~" if (found := text.find(mark)) >= 0), default=0)
    opening = _OPENING.fullmatch(text, place) if place else None
    told = opening is not None and (opening[2].lower() in _MARKED or text[:place].rstrip().endswith(":"))
    return opening if told else None


def _fence(text: str) -> str:
    """The run of three or more backticks or tildes at the start of a stripped line."""
    if not text.startswith(("```", "~~~")):
        return ""
    return text[: len(text) - len(text.lstrip(text[0]))]
