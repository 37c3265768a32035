"""Megatron models from a Hugging Face configuration: layers, attention, experts, output head."""
