"""What `tools/bench_faults.py` is made of: the run that takes faults, and the campaign of random ones."""
