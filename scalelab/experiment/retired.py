"""Settings of earlier versions that a run wrote down and did not use, since another setting decided."""

RETIRED = {
    "TrainerConfig.reference": "Recipe.loss",
    "TrainerConfig.fp32_head": "Recipe.fp32_head",
    "TrainerConfig.seed": "Run.seed",
    "TrainerConfig.device": "Cluster.device",
    "TrainerConfig.dispatch": "Layout.expert",  # one way is left for tokens whose experts are elsewhere
    "GeneratorConfig.fp32_head": "Recipe.fp32_head",
    "GeneratorConfig.record_routing": "Recipe.router_replay",
    "GeneratorConfig.expert_bias": "TrainerConfig.expert_bias",
    "GeneratorConfig.device": "Cluster.device",
    "GeneratorConfig.shares_device": "Cluster.share_devices",
}
"""The setting that decides, by the name of the one that is gone; a finished run's `config.gin` may hold these."""
