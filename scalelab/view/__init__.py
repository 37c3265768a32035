"""Runs as a page: what a run's files say, read within bounds, and served live or written to one file."""
