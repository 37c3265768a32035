"""ScaleRL on math with a miniature of Llama-4 Scout: the twin of scalerl_17bx16 on two cores."""

from experiments.scalerl_8b_miniature import experiment as scalerl_8b_miniature

experiment = scalerl_8b_miniature.with_fragments("model/scout_miniature", "evaluation/harder_sums")
