"""Training steps: batches, packing, the optimiser, ranks and their layout."""
