"""ScaleRL on math and code together with the dense 8B model: do both tasks rise, and do they rise in parallel?"""

from experiments.scalerl_8b import experiment as scalerl_8b

experiment = scalerl_8b.with_fragments("tasks/math_code", "budget/axis_50k", "evaluation/aime_24")
