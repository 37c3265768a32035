"""Code that exists only because Megatron runs without CUDA here; a GPU run uses none of it."""
