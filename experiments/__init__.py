"""Experiments: Python files that compose gin fragments."""
