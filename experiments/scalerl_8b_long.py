"""The paper's long run of ScaleRL on math with the dense 8B model, 100k GPU-hours; its forecast is made at 50k."""

from experiments.scalerl_8b import experiment as scalerl_8b

experiment = scalerl_8b.with_fragments("budget/long_100k", "evaluation/aime_24")
