"""Functions that must not take for ever, in processes that can be killed."""
