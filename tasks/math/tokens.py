r"""Cut an answer into tokens: LaTeX, plain text and the signs of Unicode alike. Linear in its length.

Nothing is dropped but what has no meaning: spaces, sizes, colours, fonts, `\left`, dollars around formulas. A command
that is not known makes the whole answer unreadable.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from tasks.math.english import words
from tasks.math.nodes import UnreadableError
from tasks.math.vocabulary import (
    BRACKETS,
    DECORATIONS,
    FUNCTIONS,
    GREEK,
    IGNORED,
    JOINERS,
    OPERATORS,
    RELATIONS,
    SIGNS,
    STRUCTURES,
    SYMBOLS,
)

MOST_DIGITS = 1000


@dataclass(frozen=True)
class Token:
    """One sign of an answer.

    Attributes:
        kind: `number`, `symbol`, `word`, `function`, `structure`, `decoration`, `operator`, `relation`, `open`,
            `close`, `{`, `}`, `join`, `dots`, `begin`, `end`, `row`, `&`, `degree`, `money`.
        text: its name in one spelling.
        spaced: white space stands before it.
        quoted: it stood in `\\text{…}`.
    """

    kind: str
    text: str
    spaced: bool = False
    quoted: bool = False


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_CIRCLED = re.compile("[①-⑳]")

_DELIMITERS = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_MONEY = re.compile(r"(?<![\\$])\$(?= ?\d)")

_WIDE = r"(?:,\\! ?|\{,\} ?|\\, ?|\\ |~| |, ?\\!)"
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_WIDE}\d{{3}})+(?![\d,]*\d)")
_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?!,?\d)")
_NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)")
_EXPONENT = re.compile(r"[eE]([+-]?\d{1,6})(?![\d.])")
_REPEATING = re.compile(r"(\d*\.\d*)\\(?:overline|bar|dot) ?(?:\{ ?(\d+) ?\}|(\d))")
_COMMAND = re.compile(r"\\([a-zA-Z]+\*?|.)", re.DOTALL)
_LETTERS = re.compile(r"[A-Za-z]+")
_BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(])|</?answer>")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)(?![A-Za-z])")
_FRENCH = re.compile(r"([\[\]])([^\[\](){}]*,[^\[\](){}]*)([\[\]])")
_DOTTED = re.compile(r"\.{3,}|…")

_TEXTS = words("text textbf textit mbox textrm textsf texttt textnormal emph hbox")
_ROMAN = words("mathrm operatorname operatorname* rm")
_FONTS = words("mathbf mathit mathcal mathsf mathscr mathfrak boldsymbol bm boxed fbox underline mathop mathbin")


def lex(text: str) -> list[Token]:
    """All tokens of an answer.

    Raises:
        UnreadableError: it has a sign or a command that no answer has.
    """
    return _Lexer(_one_spelling(text)).run()


def _one_spelling(text: str) -> str:
    """Signs of Unicode as LaTeX; dollars that are money as `\\$`."""
    text = _RAISED.sub(lambda found: "^{" + found[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _LOWERED.sub(lambda found: "_{" + found[0].translate(_SUBSCRIPTS) + "}", text)
    text = _CIRCLED.sub(lambda found: f"\\textcircled{{{ord(found[0]) - ord('①') + 1}}}", text)
    text = "".join(SIGNS.get(sign, sign) for sign in text)
    text = unicodedata.normalize("NFKC", text)
    text = _FRENCH.sub(_interval, _BOLD.sub(" ", text))
    if len(re.findall(r"(?<!\\)\$", text)) % 2:
        text = _MONEY.sub(r"\\$", text, count=1)
    return _DELIMITERS.sub(" ", text)


def _interval(found: re.Match[str]) -> str:
    """`]0,1[` → `(0,1)`."""
    opening, ends, closing = found.groups()
    if (opening, closing) == ("[", "]"):
        return found[0]
    return f"{'[' if opening == '[' else '('}{ends}{']' if closing == ']' else ')'}"


class _Lexer:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.tokens: list[Token] = []
        self.spaced = False
        self.depth = 0  # of brackets other than braces
        self.quotes: list[bool] = []  # for every open brace: does it end a quotation?
        self.quoted = 0

    def run(self) -> list[Token]:
        while self.place < len(self.text):
            self._step()
        return self.tokens

    def _add(self, kind: str, text: str) -> None:
        self.tokens.append(Token(kind, text, self.spaced, bool(self.quoted)))
        self.spaced = False

    def _step(self) -> None:
        sign = self.text[self.place]
        if sign.isspace():
            self.place, self.spaced = self.place + 1, True
        elif sign == "\\":
            self._command()
        elif sign.isdigit() or (sign == "." and self.text[self.place + 1 : self.place + 2].isdigit()):
            self._number()
        elif sign.isascii() and sign.isalpha():
            self._letters()
        elif found := _DOTTED.match(self.text, self.place):
            self.place = found.end()
            self._add("dots", "...")
        else:
            self.place += 1
            self._sign(sign)

    def _sign(self, sign: str) -> None:
        if sign == "{":
            self.quotes.append(False)
            self._add("{", sign)
        elif sign == "}":
            if self.quotes and self.quotes.pop():
                self.quoted -= 1
                self.spaced = True
            else:
                self._add("}", sign)
        elif sign == "~":
            self.spaced = True
        elif sign in ".?":
            self._stop(sign)
        elif sign in ",;":
            self._add("join", sign)
        elif sign == "&":
            self._add("&", sign)
        elif sign == "|":
            self._add("bar", sign)
        elif sign in BRACKETS:
            kind, name = BRACKETS[sign]
            self.depth = max(0, self.depth + (kind == "open") - (kind == "close"))
            self._add(kind, name)
        elif sign in RELATIONS:
            self._relation(sign)
        elif sign in OPERATORS:
            self._operator(sign)
        else:
            raise UnreadableError(sign)

    def _stop(self, sign: str) -> None:
        """A full stop ends an answer, an abbreviation (`p.m.`) or nothing; between formulas it is unreadable."""
        rest = self.text[self.place :].strip(" }*")
        before = self.tokens[-1].kind if self.tokens else ""
        if len(self.tokens) == 1 and re.fullmatch("[A-J]", self.tokens[0].text) and rest:
            self._add("operator", ":")
        elif sign == "." and (not rest or before == "word" or (before == "symbol" and self.quoted)):
            self.spaced = True
        elif sign == "." and before == "number" and not rest[:1].isdigit() and rest[:1] in (",", ")", "]", ""):
            return
        else:
            raise UnreadableError(sign)

    def _relation(self, sign: str) -> None:
        for pair, name in (("<=", "le"), (">=", "ge"), ("!=", "ne"), ("==", "=")):
            if self.text.startswith(pair, self.place - 1):
                self.place += 1
                return self._add("relation", name)
        self._add("relation", RELATIONS[sign])

    def _operator(self, sign: str) -> None:
        if sign == "!" and self.text[self.place : self.place + 1] == "=":
            self.place += 1
            self._add("relation", "ne")
        elif sign == "*" and self.text[self.place : self.place + 1] == "*":
            self.place += 1
            self._add("operator", "^")
        else:
            self._add("operator", OPERATORS[sign])

    def _number(self) -> None:
        if found := _REPEATING.match(self.text, self.place):
            self.place = found.end()
            self._add("number", f"{found[1]}({found[2] or found[3]})")
            return
        found = _GROUPED.match(self.text, self.place)
        if not found and not self.depth:
            found = _COMMAS.match(self.text, self.place)
        digits = re.sub(r"\D", "", found[0]) if found else ""
        if found:
            self.place = found.end()
            fraction = re.compile(r"\.\d+").match(self.text, self.place)
            if fraction:
                digits, self.place = digits + fraction[0], fraction.end()
        else:
            plain = _NUMBER.match(self.text, self.place)
            assert plain is not None
            digits, self.place = plain[0], plain.end()
        if len(digits) > MOST_DIGITS or not digits.isascii():
            raise UnreadableError("digits")
        if exponent := _EXPONENT.match(self.text, self.place):
            self.place = exponent.end()
            digits = f"{digits}e{exponent[1]}"
        elif ordinal := _ORDINAL.match(self.text, self.place):
            self.place = ordinal.end()
        self._add("number", digits)

    def _letters(self) -> None:
        found = _LETTERS.match(self.text, self.place)
        assert found is not None
        self.place = found.end()
        self._name(found[0])

    def _name(self, name: str) -> None:
        lowered = name.lower()
        unit = name in ("min", "sec") and bool(self.tokens) and self.tokens[-1].kind in ("number", "}")
        if lowered in JOINERS:
            self._add("join", lowered)
        elif lowered == "mod":
            self._add("structure", "bmod")
        elif self.quoted or (unit and self.text[self.place : self.place + 1] not in ("(", "{", "_", "\\")):
            self._add("word", name)
        elif len(name) == 1:
            self._add("symbol", name)
        elif name in FUNCTIONS:
            self._add("function", FUNCTIONS[name])
        elif name in ("sqrt", "gcd", "lcm", "max", "min", "binom"):
            self._add("structure" if name in STRUCTURES else "function", name)
        elif name in ("pi", "infty", "inf", "infinity", "oo", "alpha", "beta", "theta", "lambda"):
            self._add("symbol", "infty" if name in ("inf", "infinity", "oo") else name)
        elif name == "pm":
            self._add("word", name)
        elif name == "np" and self.text.startswith(".", self.place):
            self.place += 1
        else:
            self._add("word", name)

    def _command(self) -> None:
        found = _COMMAND.match(self.text, self.place)
        if not found:
            raise UnreadableError("\\")
        name, self.place = found[1], found.end()
        if name in IGNORED or name.isspace():
            self.spaced = True
        elif name in ("left", "right", "middle", "bigl", "bigr", "Bigl", "Bigr"):
            self._sized(name)
        elif name in _TEXTS:
            self._quotation()
        elif name in _ROMAN:
            self._roman()
        elif name in _FONTS:
            return
        elif name in ("color", "textcolor", "colorbox"):
            self._argument()
        elif name in ("phantom", "hphantom", "vphantom"):  # nothing is seen of its argument
            self._skip_argument()
        elif name in ("begin", "end"):
            self._add(name, self._argument())
        elif name in ("\\", "newline", "cr"):
            self._add("row", "\\\\")
        elif name in GREEK:
            self._add("symbol", GREEK[name])
        elif name in SYMBOLS:
            self._add("symbol", SYMBOLS[name])
        elif name == "mathbb":
            self._add("symbol", "set" + (self._argument() if self._next() == "{" else self._letter()))
        else:
            self._meaning(name)

    def _meaning(self, name: str) -> None:
        if name in FUNCTIONS:
            self._add("function", FUNCTIONS[name])
        elif name in STRUCTURES:
            self._add("structure", STRUCTURES[name])
        elif name in DECORATIONS:
            self._add("decoration", DECORATIONS[name])
        elif name in RELATIONS:
            self._add("relation", RELATIONS[name])
        elif name in OPERATORS:
            self._add("operator", OPERATORS[name])
        elif name in BRACKETS:
            kind, bracket = BRACKETS[name]
            self.depth = max(0, self.depth + (kind == "open") - (kind == "close"))
            self._add(kind, bracket)
        elif name in ("ldots", "dots", "cdots", "dotsc", "dotsb", "vdots", "dotso"):
            self._add("dots", "...")
        elif name == "circ" and self.tokens and self.tokens[-1].kind in ("symbol", "close"):
            self._add("operator", "circ")  # one function behind another
        elif name in ("circ", "degree", "textdegree"):
            self._add("degree", "deg")
        elif name in ("$", "euro", "pounds", "yen", "texteuro"):
            self._add("money", name)
        elif name in ("%", "percent"):
            self._add("operator", "%")
        elif name in ("&", "#", "_"):
            self._add("word", name)
        elif name in ("lor", "vee"):
            self._add("join", "or")
        elif name in ("land", "wedge"):
            self._add("join", "and")
        else:
            raise UnreadableError(f"\\{name}")

    def _sized(self, name: str) -> None:
        """`\\left|` and `\\right|` tell what a bar alone does not; `\\left.` and `\\right.` are nothing."""
        following = self._next()
        if following == ".":
            self.place += 1
            self._add("open" if name == "left" else "close", ".")
        elif following == "|":
            self.place += 1
            kind = {"l": "open", "r": "close"}.get(name[3:4] if name[:3].lower() == "big" else name[0], "bar")
            self._add(kind, "|")

    def _quotation(self) -> None:
        if self._next() != "{":
            raise UnreadableError("\\text")
        self.place += 1
        self.spaced = True
        self.quotes.append(True)
        self.quoted += 1

    def _roman(self) -> None:
        """`\\mathrm{e}` is a symbol, `\\mathrm{~m/s}` and `\\mathrm{cm}` are words; `\\mathrm e` has no braces."""
        if self._next() != "{":
            return self._name(self._letter())
        closing = self.text.find("}", self.place)
        content = self.text[self.place + 1 : max(closing, 0)]
        after_number = bool(self.tokens) and self.tokens[-1].kind in ("number", "}", "degree", "close")
        if re.fullmatch(r"[A-Za-z]", content.strip()) and not (after_number and _is_short_unit(content)):
            self.place = closing + 1
            self._add("symbol", content.strip())
        elif re.fullmatch(r"[a-z]{2,}", content.strip()) and content.strip() in FUNCTIONS:
            self.place = closing + 1
            self._add("function", FUNCTIONS[content.strip()])
        else:
            self._quotation()

    def _next(self) -> str:
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def _letter(self) -> str:
        letter = self._next()
        self.place += 1
        if not (letter.isascii() and letter.isalpha()):
            raise UnreadableError(letter)
        return letter

    def _skip_argument(self) -> None:
        if self._next() == "{":
            self._argument()
        else:
            self.place += 1

    def _argument(self) -> str:
        """The plain text between the next braces."""
        if self._next() != "{":
            raise UnreadableError("braces")
        closing = self.text.find("}", self.place)
        if closing < 0:
            raise UnreadableError("{")
        content, self.place = self.text[self.place + 1 : closing], closing + 1
        return content.strip()


def _is_short_unit(content: str) -> bool:
    """A letter in roman type behind a number is a unit, unless it is one of the constants."""
    return content.strip() not in ("e", "i", "d") and (content[:1] in "~ " or content in "msghlLNJWVAKFTC")
