"""The policy's weights: loaded from a model folder, exported as a stream of Hugging Face-named tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state

from megatron_sspo.policy.names import logical_parameters
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.run import Parallel
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.gather import GatherPlan
from megatron_sspo.weights.pieces import Shard
from megatron_sspo.weights.table import ParameterMap


def shard_of(row: ParameterMap) -> Shard:
    """Returns (number, count) of the shard of a row's parameter that this rank holds."""
    state: Any = parallel_state
    if row.group == "tensor":
        return state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()
    if row.group == "expert_tensor":
        return state.get_expert_tensor_parallel_rank(), state.get_expert_tensor_parallel_world_size()
    return 0, 1


def check_shards(rows: Sequence[ParameterMap], parallel: Parallel) -> None:
    """Checks that the layout cuts every parameter into equal shards; Megatron would fail later, with assertions.

    Raises:
        UserError: a parameter cannot be cut into equal shards.
    """
    num_shards = {"none": 1, "tensor": parallel.tensor, "expert_tensor": parallel.expert_tensor}
    for row in rows:
        row.blocks(0, num_shards[row.group])


@torch.no_grad()
def load_folder(chunks: Sequence[Any], rows: Sequence[ParameterMap], folder: ModelFolder) -> None:
    """Fills the model from a folder of weights; each rank reads only its own slices.

    Raises:
        UserError: the folder and the table do not match (see `ModelFolder.check`).
    """
    folder.check(rows)
    by_name = {row.name: row for row in rows}
    for name, parameter in logical_parameters(chunks):
        mark_progress()
        row = by_name[name]
        tensor = row.to_megatron(folder.read, *shard_of(row))
        assert tensor.shape == parameter.shape, name
        parameter.copy_(tensor)
    folder.close()


def make_gather_plan(chunks: Sequence[Any], rows: Sequence[ParameterMap], **options: Any) -> GatherPlan:
    """Returns the plan by which this policy's weights are gathered from all ranks. A collective."""
    by_name = {row.name: row for row in rows}
    parameters: dict[str, torch.Tensor] = {}
    for name, parameter in logical_parameters(chunks):
        parameters.setdefault(name, parameter)  # a tied output layer repeats the embedding on a one-stage pipeline
    shards = {name: shard_of(by_name[name]) for name in parameters}
    return GatherPlan(rows, parameters, shards, **options)
