"""The tables of docs/curves.md, a module for each kind; `tools/bench/curves.py` writes them."""
