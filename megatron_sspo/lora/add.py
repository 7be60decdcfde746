"""Adds adapters to a policy's model, as its run says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_sspo.lora.adapters import Adapters
from megatron_sspo.lora.peft_folder import read_peft_folder
from megatron_sspo.run import LoRA
from megatron_sspo.weights.lora import factors_of, initial_factors
from megatron_sspo.weights.table import ParameterMap


def add_adapters(chunks: Sequence[Any], rows: Sequence[ParameterMap], lora: LoRA, seed: int, **layout: Any) -> Adapters:
    """Freezes the model and adds adapters, before DDP wraps it. A collective.

    Args:
        chunks: this process's model, with its weights.
        rows: the weight table of the model.
        layout: `parameters_of` and `shard_of` of `Adapters`.

    Raises:
        UserError: see `factors_of` and `read_peft_folder`.
    """
    factors = factors_of(rows, lora.targets, lora.rank)
    read = read_peft_folder(Path(lora.path), lora, factors) if lora.path else initial_factors(factors, seed)
    return Adapters(chunks, factors, scale=lora.alpha / lora.rank, read=read, **layout)
