"""Trains adapters of the model that the quickstart's warm start makes, in place of its weights.

    megatron-sspo train examples/tiny_moe.py --set name=tiny_moe-warm --set num_updates=2
    megatron-sspo train examples/tiny_moe_lora.py

The learning rate is ten times that of the weights, as usual with LoRA.
"""

from dataclasses import replace

import tiny_moe

from megatron_sspo.run import LoRA, Model, Optimizer, Run


def recipe() -> Run:
    """Returns the quickstart's run with adapters of rank 8 on attention and experts."""
    return replace(
        tiny_moe.recipe(),
        name="tiny_moe_lora",
        model=Model(path="runs/tiny_moe-warm/model", dtype="float32"),
        warm_start=None,
        lora=LoRA(rank=8, alpha=16.0, targets=("attention", "experts")),
        optimizer=Optimizer(lr=1e-3, warmup_updates=4),
    )
