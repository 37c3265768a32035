"""Generators (vLLM): requests, completions, interruption, tokenizer, evaluation; import the submodules you need."""
