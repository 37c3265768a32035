"""Words of English that stand in and around answers, by what they do there."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


LEADS = words(
    "the final answer answers is are so thus therefore hence we get have obtain it its equals equal that value values "
    "total there exactly be solution solutions result to this which find must then number sum rs usd"
)
"""Words before an answer that say nothing about it."""

COUNTED_FILLERS = words("the a an of in total all different distinct possible such per each his her their its")
"""Words in the name of what is counted that do not tell it from others."""

MEANING = words(
    "is are was be not no nor or and more less fewer greater than least most at about around approximately half third "
    "quarter squared square cubed cube factorial wrong false incorrect if otherwise to from between plus minus over "
    "under mod modulo remainder choose maybe possibly perhaps probably never except but unless when root degrees "
    "percent by up down negative positive percentage below above without instead either any unknown"
)
"""Words behind a number that are more than the name of what is counted."""

QUALIFIERS = words("for where if when whenever with such otherwise given provided")
"""Words that begin a condition."""

LINKS = QUALIFIERS - {"otherwise"} | words(
    "that is are be an a any all every each some the arbitrary number numbers constant constants fixed value values of "
    "holds denotes parameter"
)
"""Words in a condition that carry no meaning of their own."""

UNIVERSAL = words("any all every each arbitrary constant constants")
"""Words in a condition that say that it restricts nothing."""

DOMAINS = {
    "integer": "setZ", "integers": "setZ", "integral": "setZ", "natural": "setN", "real": "setR", "reals": "setR",
    "complex": "setC", "rational": "setQ",
}  # fmt: skip
"""Names of sets of numbers."""

SHORT = QUALIFIERS | words("of is to at by in on an a as it we he no not are the per all any but day")
"""Short words that are no products of letters."""

ORDINALS = words("th st nd rd")
"""Endings of ordinal numbers."""

SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "dozens": 12,
}  # fmt: skip
"""Words that multiply the number before them."""

FILLERS = words(
    "the a an is are it its series sequence integral function graph answer answers of this that they limit so "
    "on therefore thus hence does will be statement"
)
"""Words in an answer in words that do not tell it from others."""

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_TENS = "thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {name: value for value, name in enumerate(_ONES.split())} | {
    name: 10 * value for value, name in enumerate(_TENS.split(), 3)
}
"""Names of numbers."""
