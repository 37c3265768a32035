"""Parts of `tools/bench_faults.py`: the run that takes faults, and the campaign of random ones."""
