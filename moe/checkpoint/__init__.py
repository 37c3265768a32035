"""Megatron distributed checkpoints: writing, reading, and which to keep."""
