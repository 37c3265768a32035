"""Weights under Hugging Face names: folders, conversion, publication to generators."""
