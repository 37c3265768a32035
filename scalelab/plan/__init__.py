"""Needs of a run before it starts: memory per rank, placement, time and GPU-hours; no GPU, no torch."""
