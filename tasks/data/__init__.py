"""Public data sets as tasks."""
