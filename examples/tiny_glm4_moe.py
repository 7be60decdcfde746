"""Trains a small model of the family of GLM-4.5 to add numbers, as the quickstart does with Qwen3-MoE.

    megatron-sspo train examples/tiny_glm4_moe.py

The first layer has no experts, the others have eight and a shared one. The biases with which the routers choose experts
move with every update, as in pretraining.
"""

from dataclasses import replace
from pathlib import Path

import tiny_moe

from megatron_sspo.run import Model, Run


def recipe() -> Run:
    """Returns the quickstart's run with another model."""
    return replace(
        tiny_moe.recipe(),
        name="tiny_glm4_moe",
        model=Model(path=str(Path(__file__).parent / "tiny_glm4_moe"), init="random", dtype="float32"),
        megatron={"moe_router_bias_update_rate": 0.001},
    )
