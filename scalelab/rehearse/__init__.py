"""Rehearsal of a run: every distinct role of a layout at full size, on tensors without values."""
