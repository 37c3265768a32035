"""Worlds on a simulated clock: virtual (the real engine and trainer in one process) and simulated (drawn lengths)."""
