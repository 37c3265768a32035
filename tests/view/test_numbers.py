"""Numbers of the page's JavaScript, beside those of the terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np

from scalelab.numbers import percent, with_interval

CORE = Path(__file__).parents[2] / "scalelab" / "view" / "static" / "core.js"

SCRIPT = """
globalThis.window = globalThis;
globalThis.localStorage = { getItem: () => null, setItem: () => null };
(0, eval)(require("fs").readFileSync(process.argv[1], "utf8"));
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
const intervals = cases.intervals.map(([value, ends]) => Lab.interval(value, ends));
console.log(JSON.stringify({ intervals, chances: cases.chances.map(Lab.chance) }));
"""


def test_intervals_and_probabilities_read_the_same_on_page_and_terminal() -> None:
    rng = np.random.default_rng(0)
    value_N, below_N, above_N = (10.0 ** rng.uniform(low, high, 400) for low, high in ((-3, 7), (-5, 6), (-5, 6)))
    intervals = [(v, (v - a, v + b)) for v, a, b in zip(value_N.tolist(), below_N.tolist(), above_N.tolist())]
    intervals += [(0.612, (None, 0.7)), (0.612, (0.6, None)), (0.612, (None, None)), (-0.00012, (-0.02, 0.02))]
    chances = [0.0, 0.004, 0.0099, 0.01, 0.026, 0.5, 0.9899, 0.991, 0.999, 1.0]
    cases = json.dumps({"intervals": intervals, "chances": chances})
    done = subprocess.run(
        ["node", "-e", SCRIPT, str(CORE)], input=cases, capture_output=True, text=True, timeout=60, check=True
    )
    said = json.loads(done.stdout)
    assert [text.replace("−", "-") for text in said["intervals"]] == [with_interval(*one) for one in intervals]
    assert said["chances"] == [percent(one) for one in chances]
