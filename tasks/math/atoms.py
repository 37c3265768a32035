"""Parse the smallest parts of formulas: numbers, symbols, functions, fractions, roots, sums, matrices, and powers."""

from __future__ import annotations

from fractions import Fraction

from tasks.math.english import ORDINALS
from tasks.math.nodes import Apply, Meaning, Number, Symbol, UnreadableError
from tasks.math.structures import StructureParser, whole
from tasks.math.tokens import Token

MOST_EXPONENT = 1000
_CALLED = frozenset(["f", "g", "h", "F", "G", "H", "P", "phi", "psi", "Phi", "Psi", "E"])
_INVERSES = {name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")}


class AtomParser(StructureParser):
    """The grammar of factors."""

    def atom(self) -> Meaning:
        """The smallest part at this place."""
        token = self.now
        if token.kind == "number":
            return self._number()
        if token.kind == "symbol" or (token.kind == "word" and len(token.text) == 1):
            return self._symbol()
        if token.kind == "word" and not token.quoted:
            return self._letters()
        if token.kind == "function":
            return self._function()
        if token.kind == "structure":
            return self.structure()
        if token.kind == "decoration":
            return self._decorated()
        if token.kind == "open":
            return self.brackets()
        if token.kind == "bar":
            return self._absolute()
        if token.kind == "{" and self.ahead().kind == "}":  # nothing, in front of a script: `{}_5C_2`
            self.place += 2
            return self._prefixed()
        if token.kind == "{":
            return self.group()
        if token.kind == "begin":
            return self.environment()
        if self.at("operator", "^", "_") and self.ahead().kind in ("{", "number"):
            return self._prefixed()
        raise UnreadableError(f"{token.text!r} where a formula begins")

    def group(self) -> Meaning:
        """Content of braces; `{n \\choose k}` and `{a \\over b}` are read here."""
        self.deeper()
        self.expect("{")
        outer = self.bars, self.builders
        self.bars = self.builders = 0
        part = self.listing()
        if self.at("structure", "choose", "over"):
            name = {"choose": "binom", "over": "div"}[self.take().text]
            part = Apply(name, (self.formula(part), self.formula(self.sum())))
        self.bars, self.builders = outer
        self.expect("}")
        self.depth -= 1
        return part

    def argument(self) -> Meaning:
        """An argument of a command: a group in braces, else one digit, letter or command."""
        if self.at("{"):
            return self.group()
        if self.at("number") and len(self.now.text) > 1 and self.now.text.isdigit():
            token = self.now
            self.tokens[self.place : self.place + 1] = [
                Token("number", token.text[0]),
                Token("number", token.text[1:]),
            ]
        return self.atom()

    # Numbers and symbols.

    def _number(self) -> Meaning:
        text = self.take().text
        digits, _, exponent = text.partition("e")
        digits, _, repeating = digits.removesuffix(")").partition("(")
        if exponent and abs(int(exponent)) > MOST_EXPONENT:
            raise UnreadableError("a huge exponent")
        whole, point, decimals = digits.partition(".")
        value = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
        if repeating:
            value += Fraction(int(repeating), 10 ** len(decimals) * (10 ** len(repeating) - 1))
            return Number(value)
        if exponent:
            value *= Fraction(10) ** int(exponent)
            return Number(value, max(0, len(decimals) - int(exponent)) if point else None)
        return Number(value, len(decimals) if point else None)

    def _symbol(self) -> Meaning:
        name = self.take().text
        return self.named(name)

    def named(self, name: str) -> Meaning:
        """A symbol with its subscript and primes, and its argument if it is a function's."""
        plain = name
        changed = True
        while changed:
            changed = False
            if self.at("operator", "_"):
                self.take()
                name, changed = f"{name}_{self.script()}", True
                chosen = self._chosen(name)
                if chosen is not None:
                    return chosen
            elif self.at("operator", "'"):
                self.take()
                name, changed = f"{name}'", True
        if self._is_called(plain, name):
            return self._call(name)
        return Symbol(name)

    def script(self) -> str:
        """The text of a subscript."""
        if not self.at("{"):
            return self.take().text
        return self.spelled_group()

    def spelled_group(self) -> str:
        """The text of what stands in braces."""
        depth, parts = 0, []
        while True:
            token = self.take()
            if not token.kind:
                raise UnreadableError("{ without its }")
            depth += (token.kind == "{") - (token.kind == "}")
            if token.kind not in ("{", "}"):
                parts.append(token.text)
            if not depth:
                return ",".join(parts) if len(parts) > 1 else "".join(parts)

    def _is_called(self, plain: str, name: str) -> bool:
        """True if brackets behind a symbol hold a function's argument: by its name, or as no product looks so."""
        if self.at("operator", "^") and plain in _CALLED and self.ahead().kind == "{":
            inverse = [self.ahead(place).text for place in (2, 3, 4)] == ["-", "1", "}"]
            if inverse and self.ahead(5).text == "(":
                self.place += 5
                return True
        if not self.at("open", "(") or self.at_qualifier():
            return False
        if plain in _CALLED or name.endswith("'"):
            return True
        inside, depth = 0, 0
        for token in self.tokens[self.place : self.place + 200]:
            depth += (token.kind == "open") - (token.kind == "close")
            if depth == 0:
                break
            if depth == 1 and (token.kind == "join" or token.kind in ("relation", "bar")):
                return True
            inside += 1
        only = self.ahead()
        return inside == 2 and only.kind in ("number", "symbol") and only.text != plain

    def _call(self, name: str) -> Meaning:
        start = self.place
        if self.tokens[start - 1].text == "}" and self.tokens[start - 3 : start - 1][-1].text == "1":
            name = f"{name}^-1"
        self.expect("open", "(")
        items, _ = self.items()
        if self.at("bar"):  # of a conditional probability
            self.take()
            items += self.items()[0]
        self.expect("close", ")")
        if (
            items
            and all(isinstance(item, Apply | Number | Symbol) for item in items)
            and "bar" not in {token.kind for token in self.tokens[start : self.place]}
        ):
            return Apply(f"call:{name}", tuple(items))
        return Symbol(name + "".join(token.text for token in self.tokens[start : self.place]))

    def _letters(self) -> Meaning:
        """Letters without spaces between them are a product."""
        word = self.now
        if len(word.text) > 5:
            raise UnreadableError(f"the word {word.text}")
        self.tokens[self.place : self.place + 1] = [Token("symbol", letter) for letter in word.text]
        return self._symbol()

    def _decorated(self) -> Meaning:
        name = self.take().text
        inside = self.spelled_group() if self.at("{") else self.take().text
        if not inside:
            raise UnreadableError("an accent above nothing")
        return self.named(f"{name}({inside})")

    def _chosen(self, name: str) -> Meaning | None:
        r"""`C_5^2` is a number of combinations, `A_5^2` of permutations; None if it is a symbol with a power."""
        if not (name.startswith(("C_", "A_", "P_")) and self.at("operator", "^")):
            return None
        start = self.place
        self.take()
        size = name[2:]
        taken = self.script()
        if not (size.isdigit() and taken.isdigit() and int(taken) <= int(size)):
            self.place = start
            return None
        return Apply("binom" if name[0] == "C" else "permutations", (whole(size), whole(taken)))

    def _prefixed(self) -> Meaning:
        """`_5C_2`, `^5C_2`."""
        if self.take().text == "_" or self.at("{") or self.at("number"):
            size = self.script()
            token = self.take()
            if token.text in ("C", "P") and self.accept("operator", "_"):
                taken = self.script()
                if size.isdigit() and taken.isdigit():
                    return Apply("binom" if token.text == "C" else "permutations", (whole(size), whole(taken)))
        raise UnreadableError("a script in front")

    # Functions.

    def _function(self) -> Meaning:
        name = self.take().text
        power: Meaning | None = None
        base: Meaning | None = None
        while self.at("operator", "^", "_"):
            if self.take().text == "^":
                power = self.argument()
            else:
                base = self.argument()
        if power == Number(Fraction(-1)) and name in _INVERSES:
            name, power = _INVERSES[name], None
        args: tuple[Meaning, ...] = self._arguments(name)
        if base is not None:
            if name != "log":
                raise UnreadableError(f"{name} with a subscript")
            args = (*args, self.formula(base))
        part = Apply(name, args)
        return part if power is None else Apply("pow", (part, self.formula(power)))

    def _arguments(self, name: str) -> tuple[Meaning, ...]:
        """The arguments of a function: what stands in brackets behind it, else the factors up to a sign."""
        if self.at("open", "(", "[", "\\{"):
            closing = {"(": ")", "[": "]", "\\{": "\\}"}[self.take().text]
            outer = self.bars, self.builders
            self.bars = self.builders = 0
            items, _ = self.items()
            self.bars, self.builders = outer
            self.expect("close", closing)
            if not items or (len(items) > 1 and name not in ("gcd", "lcm", "max", "min")):
                raise UnreadableError(f"arguments of {name}")
            return tuple(self.formula(item) for item in items)
        if self.at("{"):
            return (self.formula(self.group()),)
        negative = self.accept("operator", "-")
        factors = [self.formula(self.factor())]
        while not self._ends_argument(factors):
            factors.append(self.formula(self.factor()))
        part = factors[0] if len(factors) == 1 else Apply("mul", tuple(factors))
        return (Apply("neg", (part,)) if negative else part,)

    def _ends_argument(self, factors: list[Meaning]) -> bool:
        """`\\sin 2x` goes on, `\\sin x (…)`, `\\sin x e^x` and `\\sin x \\cos x` do not."""
        last = factors[-1]
        if isinstance(last, Number) or last in (Symbol("pi"), Symbol("omega")):
            return not (self.at("symbol") or self.at("structure", "frac", "sqrt") or self.at("word"))
        return not (
            self.at("symbol") and self.now.text not in ("e",) and self.ahead().text != "^" and not self.now.spaced
        )

    def _absolute(self) -> Meaning:
        sign = self.take().text
        self.bars += 1
        inside = self.formula(self.sum())
        self.bars -= 1
        self.expect("bar", sign)
        return Apply("abs" if sign == "|" else "norm", (inside,))

    # Behind an atom.

    def postfixed(self, part: Meaning) -> Meaning:
        """The part with its powers, factorials, degrees and per cents."""
        while True:
            if self.accept("operator", "!"):
                double = self.accept("operator", "!")
                part = Apply("double_factorial" if double else "factorial", (self.formula(part),))
            elif self.accept("operator", "%"):
                part = Apply("percent", (self.formula(part),))
            elif self.accept("degree"):
                part = Apply("degree", (self.formula(part),))
            elif self.accept("operator", "^"):
                part = self._raised(part)
            elif self.at("operator", "'") and isinstance(part, Apply | Number):
                raise UnreadableError("a prime behind a number")
            else:
                return part

    def _raised(self, part: Meaning) -> Meaning:
        """Behind `^`: an exponent, the sign of degrees, or the end of an ordinal."""
        if self.accept("degree"):
            return Apply("degree", (self.formula(part),))
        if self.at("{") and self.ahead(2).kind == "}":
            inside = self.ahead()
            if inside.kind == "degree" or inside.text in ORDINALS:
                self.place += 3
                return Apply("degree", (self.formula(part),)) if inside.kind == "degree" else part
            if inside.text == "'" and isinstance(part, Symbol):
                self.place += 3
                return self.named(f"{part.name}'")
        if self.at("operator", "-"):
            self.take()
            exponent: Meaning = Apply("neg", (self.formula(self.atom()),))
        else:
            exponent = self.formula(self.atom() if self.at("number") else self.argument())
        return Apply("pow", (self.formula(part), self.formula(exponent)))
