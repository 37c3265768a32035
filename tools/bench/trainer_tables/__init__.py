"""The tables of `tools/bench/trainer.py`."""
