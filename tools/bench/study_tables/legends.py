"""Legends of the study's tables, by document and section; put above each."""

from __future__ import annotations

from study_tables.figure import PICTURES

LEGENDS = {
    ("README.md", "recipes_many"): """\
A word counts only if it is said on five axes: hours, steps, tokens, and hours where decoding costs a quarter or
four times as much. Numbers are measured differences: of the mean of each seed's last four evaluations. "No fit"
is a member that, or whose ScaleRL, falls back or does not rise, so that there is no curve to compare; "unstable" is
one that falls more than ScaleRL, and of which nothing else can be said.""",
    ("README.md", "grid"): """\
*Best less end*: the highest mean of three evaluations, less that of the last four.""",
    ("README.md", "bases"): """\
Ends from each base model, and of the changes what they end above ScaleRL from the same one (1,024 prompts; seeds in
brackets). *for other bases*: mean over base models, as if drawn from many, with its 80 % interval (Student's t).""",
    ("README.md", "claims"): """\
A claim names the word that it lets one expect of a member. One contrary word: *disagrees*. Of what should differ,
one word as expected, and none "unstable" or "no fit": *agrees*. What should be alike must be "equal"
everywhere. Where the counter of the ingredient shows no work, or nothing ran: *not exercised*. Words must hold on
all five axes; claims on speed are read at a quarter of the hours, on three clusters. Ends stand in for asymptotes.""",
    ("tables.md", "claims"): """\
*Seeds*: of each of the two, that find the difference with 80 % by `scalelab design`, from ScaleRL's curve and
drift and the spread of the two members' seeds (ScaleRL's alone where the other has one), for claims that stay
open, runs whose ingredient had no work among them. With 256 prompts its drift on math is its decline, so many are
asked for. "–": measured at less than 0.01.""",
    ("tables.md", "ends"): """\
*end*: mean of a seed's last four evaluations; *best*: the highest mean of three in a row; *fell*: seeds that
fell by 0.05 or more beyond chance; *gain seen*: share of a sigmoid's gain; *refused*: draws of a retired
prompt.""",
    ("tables.md", "recipes_many"): """\
*measured*: of the ends, less the baseline's. *curve*: the same of the fitted curves. Then the word of `scalelab
compare` on each axis; the words of one question hold together. *with all questions*: the word by hours that
holds for all lines of all questions.""",
    ("tables.md", "base"): """\
ScaleRL from the first base model beside ScaleRL from the second.""",
    ("tables.md", "forecasts"): """\
Mean size of the error of forecasts of the mean of the last three evaluations. *others' growth*: no change, and
what the other members' runs gained on the average from there on.""",
    ("tables.md", "ranking"): """\
As measured: the mean of each seed's last three evaluations so far. By forecast: of the end, from the
evaluations so far.""",
    ("tables.md", "controls"): """\
Two seeds against two others, in three ways.""",
    ("tables.md", "pace"): """\
GPU-hours of a step, as run, and simulated where decoding takes a quarter and four times as long.""",
}


def with_legend(document: str, name: str, text: str) -> str:
    """A section's text with its picture and its legend above."""
    picture = PICTURES.get(name) if document == "README.md" else None
    shown = None if picture is None else f"![{picture.caption}]({name}.png)"
    return "\n\n".join(part for part in (shown, LEGENDS.get((document, name)), text) if part)
