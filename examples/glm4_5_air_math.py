"""Trains GLM-4.5-Air, of 106 billion parameters, on DAPO's mathematics with SSPO, in the paper's setting.

megatron-sspo train examples/glm4_5_air_math.py
"""

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe() -> Run:
    """Uses 32 GPUs: two stages of 23 layers, attention cut over 4 of a stage's 16 GPUs, experts over all of them."""
    return paper(
        "glm4_5_air_math",
        "GLM-4.5-Air",
        DAPO_MATH,
        Parallel(data=4, tensor=4, sequence=True, pipeline=2, expert=16),
        evaluation=("aime24", "aime25", "math-500"),
    )
