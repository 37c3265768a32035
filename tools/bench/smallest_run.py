"""Settings of the smallest run that the whole loop allows; tests and the bench of faults add their own."""

from typing import Any

SMALLEST: dict[str, Any] = {
    "Llama4Text.num_hidden_layers": 4,
    "Llama4Text.hidden_size": 64,
    "Llama4Text.intermediate_size": 32,
    "Llama4Text.num_attention_heads": 2,
    "Llama4Text.num_key_value_heads": 1,
    "SFT.steps": 20,
    "SFT.trainers": 1,
    "SFT.traces_per_step": 16,
    "Recipe.prompts_per_step": 4,
    "Recipe.generations_per_prompt": 4,
    "Run.checkpoint_every": 2,
    "GeneratorConfig.max_sequences": 32,
}
