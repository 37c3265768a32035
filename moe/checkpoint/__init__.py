"""Megatron distributed checkpoints: writing, reading, and the choice of those to keep."""
