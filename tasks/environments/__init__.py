"""Environments of other people's libraries as tasks."""
