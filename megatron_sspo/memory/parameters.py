"""The number of parameters that a rank holds, from the weight table."""

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.run import Parallel
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.table import ParameterMap

UNEVEN_PIPELINES = {
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
}


@dataclass(frozen=True)
class ParameterCount:
    """The numbers of parameters outside experts and in experts, which are sharded in different ways."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        return self.dense + self.experts


def padded_vocab_size(vocab_size: int, tensor: int) -> int:
    """Returns the vocabulary size, rounded up to a multiple of the tensor-parallel size."""
    return -(-vocab_size // tensor) * tensor


def check_divisibility(architecture: Mapping[str, Any], parallel: Parallel, options: Mapping[str, Any]) -> None:
    """Refuses a layout whose sizes do not divide the layers or the experts; Megatron checks all else.

    `architecture` and `options` are arguments of Megatron's TransformerConfig: the family's and the user's own.
    """
    experts = architecture.get("num_moe_experts")
    if experts and experts % parallel.expert:
        raise UserError(f"parallel.expert is {parallel.expert}, which does not divide the model's {experts} experts")
    layers, stages = architecture["num_layers"], parallel.pipeline * parallel.virtual_pipeline
    if layers % stages and not UNEVEN_PIPELINES & options.keys():
        raise UserError(
            f"parallel.pipeline × parallel.virtual_pipeline is {stages}, which does not divide the model's {layers} "
            f"layers: change it, or set one of megatron.{', megatron.'.join(sorted(UNEVEN_PIPELINES))}"
        )


def layers_per_stage(num_layers: int, parallel: Parallel, options: Mapping[str, Any]) -> list[int]:
    """Returns the number of layers of each pipeline stage. A `pipeline_model_parallel_layout` is treated as even."""
    stages = parallel.pipeline
    first = options.get("num_layers_in_first_pipeline_stage")
    last = options.get("num_layers_in_last_pipeline_stage") if stages > 1 else None
    inner = stages - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    even = [-(-left // inner)] * inner if inner else []
    return [*([] if first is None else [first]), *even, *([] if last is None else [last])]


def layers_of_stages(num_layers: int, parallel: Parallel, options: Mapping[str, Any]) -> list[range | set[int]]:
    """Returns the layers of each pipeline stage. Stages of several model chunks take turns, a chunk at a time."""
    if parallel.virtual_pipeline > 1 and not UNEVEN_PIPELINES & options.keys():
        each = num_layers // (parallel.pipeline * parallel.virtual_pipeline)
        return [
            {layer for layer in range(num_layers) if layer // each % parallel.pipeline == stage}
            for stage in range(parallel.pipeline)
        ]
    counts = layers_per_stage(num_layers, parallel, options)
    return [range(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]


def count_all(config: Mapping[str, Any]) -> ParameterCount:
    """Counts the parameters of the whole model."""
    return _count(load_family(config).rows(config, int(config["vocab_size"])), Parallel(), experts=None)


def count_per_stage(
    config: Mapping[str, Any],
    parallel: Parallel,
    options: Mapping[str, Any],
    *,
    of: Callable[[Sequence[ParameterMap]], Sequence[ParameterMap]] = list,
) -> list[ParameterCount]:
    """Counts the parameters on a rank of each pipeline stage; all ranks of a stage hold equally many.

    Args:
        of: returns the rows to count, from all rows of the model.

    Raises:
        UserError: the layout does not divide a parameter, the layers or the experts.
    """
    family = load_family(config)
    architecture = family.transformer_fields(config)
    check_divisibility(architecture, parallel, options)
    rows = of(family.rows(config, padded_vocab_size(int(config["vocab_size"]), parallel.tensor)))
    num_experts = architecture.get("num_moe_experts")
    experts = num_experts // parallel.expert if num_experts else None
    layers = layers_of_stages(architecture["num_layers"], parallel, options)
    return [_count(rows_of_stage(rows, stage, layers), parallel, experts) for stage in range(parallel.pipeline)]


def rows_of_stage(rows: Sequence[ParameterMap], stage: int, layers: Sequence[Container[int]]) -> list[ParameterMap]:
    """Returns the rows of the parameters that a pipeline stage holds; `layers` are those of `layers_of_stages`."""
    last = len(layers) - 1
    has_output = any(row.name.startswith("output_layer.") for row in rows)  # otherwise it has the embedding's weights

    def is_here(name: str) -> bool:
        if layer := re.match(r"decoder\.layers\.(\d+)\.", name):
            return int(layer[1]) in layers[stage]
        if name.startswith("embedding."):
            return stage == 0 or (stage == last and not has_output)
        return stage == last

    return [row for row in rows if is_here(row.name)]


def _count(rows: Sequence[ParameterMap], parallel: Parallel, experts: int | None) -> ParameterCount:
    """Counts the parameters of one rank, which holds the first `experts` experts of each layer (None: all)."""
    dense = in_experts = 0
    for row in rows:
        shards = {"none": 1, "tensor": parallel.tensor, "expert_tensor": parallel.expert_tensor}[row.group]
        expert = re.search(r"\.experts\.(\d+)\.", row.name)
        if expert is None:
            dense += math.prod(row.shape(shards))
        elif experts is None or int(expert[1]) < experts:
            in_experts += math.prod(row.shape(shards))
    return ParameterCount(dense, in_experts)
