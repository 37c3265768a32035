"""The tables of docs/curves.md, a module for each kind; `tools/bench_curves.py` writes them."""
