"""The run before the run: every distinct role of a layout at full size, on tensors that hold no numbers."""
