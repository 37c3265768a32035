"""Functions with time limits, in processes that can be killed."""
