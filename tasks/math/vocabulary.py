"""Names of LaTeX and signs of Unicode that answers are written with, each with the one name that the grammar uses."""

from __future__ import annotations

from tasks.math.english import words

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
GREEK = {name: name for name in _GREEK.split()} | {
    "varphi": "phi", "varepsilon": "epsilon", "vartheta": "theta", "varrho": "rho", "varsigma": "sigma", "varpi": "pi",
}  # fmt: skip
"""Letters."""

SYMBOLS = {
    "infty": "infty", "emptyset": "emptyset", "varnothing": "emptyset", "ell": "ell", "hbar": "hbar",
    "partial": "partial", "nabla": "nabla", "angle": "angle", "triangle": "triangle", "aleph": "aleph", "imath": "i",
    "exists": "exists", "forall": "forall", "top": "top", "bot": "bot", "square": "square", "propto": "propto",
    "bigstar": "star", "star": "star", "clubsuit": "club", "heartsuit": "heart", "odot": "odot", "Re": "Re", "Im": "Im",
    "R": "setR", "Z": "setZ", "N": "setN", "Q": "setQ", "C": "setC", "reals": "setR",
}  # fmt: skip
"""Signs that stand for something as a letter does."""

_SAME = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth sech csch ln log exp det arg deg dim ker"
FUNCTIONS = {name: name for name in (*_SAME.split(), "gcd", "lcm", "max", "min", "sup", "inf", "tr", "sgn", "erf")} | {
    "lg": "lg", "tg": "tan", "ctg": "cot", "cosec": "csc", "arctg": "arctan", "asin": "arcsin", "acos": "arccos",
    "atan": "arctan", "arccot": "arccot", "arcsec": "arcsec", "arccsc": "arccsc", "abs": "abs", "floor": "floor",
    "ceil": "ceil", "sign": "sgn", "arcsinh": "arcsinh", "arccosh": "arccosh", "arctanh": "arctanh", "lb": "lb",
    "cbrt": "cbrt",
}  # fmt: skip
"""Functions of one argument, with or without brackets around it."""

STRUCTURES = {
    "frac": "frac", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "sqrt": "sqrt", "binom": "binom",
    "dbinom": "binom", "tbinom": "binom", "choose": "choose", "over": "over", "sum": "sum", "prod": "prod",
    "int": "int", "lim": "lim", "pmod": "pmod", "bmod": "bmod", "mod": "bmod", "pod": "pmod", "textcircled": "circled",
    "overline": "overline", "underbrace": "underbrace", "log": "log",
}  # fmt: skip
"""Commands with a syntax of their own."""

DECORATIONS = {
    "bar": "bar", "vec": "vec", "hat": "hat", "dot": "dot", "ddot": "ddot", "tilde": "tilde", "widehat": "hat",
    "widetilde": "tilde", "overrightarrow": "vec", "mathring": "ring", "overset": "overset", "widebar": "bar",
    "overarc": "arc", "overparen": "arc",
}  # fmt: skip
"""Accents."""

RELATIONS = {
    "=": "=", "<": "lt", ">": "gt", "lt": "lt", "gt": "gt", "le": "le", "leq": "le", "leqslant": "le", "leqq": "le",
    "ge": "ge", "geq": "ge", "geqslant": "ge", "geqq": "ge", "ne": "ne", "neq": "ne", "approx": "approx",
    "in": "in", "notin": "notin", "equiv": "equiv", "mid": "mid", "nmid": "nmid", "to": "to", "rightarrow": "to",
    "mapsto": "to", "longrightarrow": "to", "Rightarrow": "implies", "implies": "implies", "iff": "iff",
    "Leftrightarrow": "iff", "Longrightarrow": "implies", "sim": "sim", "cong": "cong", "simeq": "sim",
    "subset": "subset", "subseteq": "subseteq", "supset": "supset", "supseteq": "supseteq", "perp": "perp",
    "parallel": "parallel",
    "doteq": "approx", "approxeq": "approx", "thickapprox": "approx", "not": "not", "coloneqq": "=", "ni": "ni",
}  # fmt: skip
"""Relations between two sides."""

OPERATORS = {
    "+": "+", "-": "-", "*": "*", "/": "/", "^": "^", "_": "_", "!": "!", "'": "'", "%": "%", ":": ":",
    "times": "cross", "cdot": "*", "ast": "*", "bullet": "*", "div": "/", "pm": "pm", "mp": "mp", "cup": "cup",
    "cap": "cap", "setminus": "minus", "smallsetminus": "minus", "backslash": "minus", "bigcup": "cup",
    "bigcap": "cap", "colon": ":", "prime": "'", "sp": "^", "sb": "_", "sqcup": "cup", "neg": "neg", "lnot": "neg",
}  # fmt: skip
"""Operators between and behind formulas."""

BRACKETS = {
    "(": ("open", "("), ")": ("close", ")"), "[": ("open", "["), "]": ("close", "]"),
    "{": ("open", "\\{"), "}": ("close", "\\}"), "lbrace": ("open", "\\{"), "rbrace": ("close", "\\}"),
    "langle": ("open", "<"), "rangle": ("close", ">"), "lfloor": ("open", "floor"), "rfloor": ("close", "floor"),
    "lceil": ("open", "ceil"), "rceil": ("close", "ceil"), "lvert": ("open", "|"), "rvert": ("close", "|"),
    "lVert": ("open", "norm"), "rVert": ("close", "norm"), "lbrack": ("open", "["), "rbrack": ("close", "]"),
    "vert": ("bar", "|"), "Vert": ("bar", "norm"), "|": ("bar", "norm"), "lgroup": ("open", "("),
    "rgroup": ("close", ")"),
}  # fmt: skip
r"""Brackets; `{` is `\{` here, as braces alone are read before."""

JOINERS = frozenset(["and", "or"])

IGNORED = words(
    "! , ; : > quad qquad displaystyle textstyle scriptstyle limits nolimits tiny small normalsize large Large LARGE "
    "huge Huge checkmark big Big bigg Bigg biggl biggr Biggl Biggr hspace thinspace medspace enspace nobreak strut ~ / "
    "footnotesize scriptsize bf it mathstrut hfill noindent centering"
)
"""Commands that change only the look of an answer."""

SIGNS = {
    "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge ", "⩽": "\\le ", "⩾": "\\ge ", "≠": "\\ne ",
    "≈": "\\approx ", "≡": "\\equiv ", "∈": "\\in ", "∉": "\\notin ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ",
    "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∙": "\\cdot ", "÷": "\\div ", "±": "\\pm ", "∓": "\\mp ",
    "−": "-", "–": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "√": "\\sqrt ", "°": "^\\circ ", "º": "^\\circ ",
    "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}",
    "′": "'", "’": "'", "‘": "'", "∣": "\\mid ", "∤": "\\nmid ", "→": "\\to ", "⇒": "\\Rightarrow ",
    "⇔": "\\iff ",
    "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "⟨": "\\langle ", "⟩": "\\rangle ",
    "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", 
    "¢": "\\text{ cents }",
    "€": "\\euro ", "£": "\\pounds ", "¥": "\\yen ", "∖": "\\setminus ", "∧": "\\wedge ", "∨": "\\vee ",
    "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "δ": "\\delta ", "ε": "\\epsilon ", "θ": "\\theta ",
    "λ": "\\lambda ", "μ": "\\mu ", "σ": "\\sigma ", "φ": "\\phi ", "ω": "\\omega ", "Ω": "\\Omega ", "Δ": "\\Delta ",
    "ρ": "\\rho ", "τ": "\\tau ", "ψ": "\\psi ", "µ": "\\mu ", "∑": "\\sum ", "∏": "\\prod ", "∫": "\\int ",
    "或": " or ", "且": " and ", "和": " and ", "、": ",", "。": ".",
    "“": " ", "”": " ", "✓": " ", "✅": " ", "\u200b": "", "\ufeff": "", "∠": "\\angle ", "△": "\\triangle ",
    "…": "\\ldots ", "⋯": "\\ldots ",
}  # fmt: skip
"""Signs of Unicode."""
