"""The loop of a run, what it keeps in its books, its ports and its settings."""
