"""The trainer: Megatron models, exact log-probs, weights and checkpoints; independent of scalelab and gin."""
