"""One session of a run: start, resume, signals, supervision, endings."""
