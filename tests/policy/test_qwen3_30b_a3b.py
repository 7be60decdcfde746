"""The real Qwen3-30B-A3B, as shapes: Megatron's model, the table and a checkpoint's keys name the same parameters."""

import ctypes
from collections import Counter

import pytest
import torch

from megatron_sspo.policy.model import build_chunks, transformer_config
from megatron_sspo.policy.names import logical_parameters
from megatron_sspo.run import Parallel
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.checkpoint_keys import CheckpointKeys
from tests.weights.test_families import QWEN3_30B_A3B

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h


@pytest.fixture(scope="module")
def chunks(device):
    family = load_family(QWEN3_30B_A3B)
    config = transformer_config(
        family, QWEN3_30B_A3B, Parallel(), torch.bfloat16, {"perform_initialization": False, "moe_grouped_gemm": False}
    )
    # Megatron puts the parameters on the CPU. They are never touched, but with 57 GB of address space no later test
    # could fork. glibc returns a block at once only if it has a mapping of its own, not if it is a part of the heap.
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 1 << 17)
    try:
        return [chunk.to("meta") for chunk in build_chunks(family, QWEN3_30B_A3B, config)]
    finally:
        libc.mallopt(_MMAP_THRESHOLD, 1 << 25)  # the largest that glibc chooses by itself


def test_every_parameter_has_one_row_of_its_shape(chunks):
    rows = load_family(QWEN3_30B_A3B).rows(QWEN3_30B_A3B, 151936)
    found = [(name, tuple(parameter.shape)) for name, parameter in logical_parameters(chunks)]
    assert Counter(found) == Counter((row.name, row.shape(1)) for row in rows)
    assert sum(parameter.numel() for parameter in chunks[0].parameters()) == 30_532_122_624


def test_the_checkpoint_has_the_keys_that_megatron_asks_for(chunks):
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories

    rows = load_family(QWEN3_30B_A3B).rows(QWEN3_30B_A3B, 151936)
    state = chunks[0].sharded_state_dict()
    apply_factories(state)
    asked = list(nested_values(state))
    keys = CheckpointKeys(row.name for row in rows)
    leading = keys.leading_sizes()
    written = {}
    for row in rows:
        location = keys.locations(row.name)[0]
        written[location.key] = (*leading[location.key], *row.shape(1))
    tensors = {item.key: tuple(item.global_shape) for item in asked if isinstance(item, ShardedTensor)}
    assert tensors == written
    objects = {item.unique_key for item in asked if isinstance(item, ShardedObject)}
    assert objects and objects <= set(keys.extra_state_keys())
