"""From an empty cluster to a run: job scripts, and the program that brings a Ray cluster up in a Slurm job."""
