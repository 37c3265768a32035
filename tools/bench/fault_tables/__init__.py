"""Parts of `tools/bench/faults.py`: the run that takes faults, and the campaign of random ones."""
