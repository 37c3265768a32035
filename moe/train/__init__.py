"""Training steps: micro-batches, their metrics, and the layout of ranks."""
