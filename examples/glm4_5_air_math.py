"""Trains GLM-4.5-Air, of 106 billion parameters, on DAPO's mathematics with SSPO, in the paper's setting.

megatron-sspo train examples/glm4_5_air_math.py
"""

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe() -> Run:
    """Uses 32 GPUs: two stages of 23 layers, attention on 4 of 16, experts over these 16, as is the optimizer's state."""
    return paper(
        "glm4_5_air_math",
        "GLM-4.5-Air",
        DAPO_MATH,
        Parallel(data=4, tensor=4, sequence=True, pipeline=2, expert=16),
        evaluation=("aime24", "aime25", "math-500"),
    )
