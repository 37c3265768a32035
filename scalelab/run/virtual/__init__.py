"""The virtual world: the real engine and trainer in one process, taking turns on a simulated clock."""
