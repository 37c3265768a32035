"""Modules that run in other environments, under their own names; they import nothing of the lab."""
