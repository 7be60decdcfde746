"""Corrects where Megatron looks for a parameter in the gathered state of the distributed optimizer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any


@contextmanager
def positions_without_padding(chunks: Sequence[Any]) -> Iterator[None]:
    """Gives the buffers of these chunks positions that fit the gathered state while that state is divided.

    DDP pads the end of a bucket. Megatron gathers the state of all buckets without their padding, but divides it at
    positions that include it (0.16 to 0.19), so every parameter behind a padded bucket would be saved with numbers of
    its neighbour. Buckets are padded if they do not divide by 128 and the number of data-parallel ranks.
    """
    buffers = [buffer for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    with_padding = [buffer.param_index_map for buffer in buffers]
    for buffer in buffers:
        buffer.param_index_map = _without_padding(buffer)
    try:
        yield
    finally:
        for buffer, positions in zip(buffers, with_padding, strict=True):
            buffer.param_index_map = positions


def _without_padding(buffer: Any) -> Mapping[Any, tuple[int, int, int]]:
    paddings = [bucket.grad_data.numel() - bucket.numel_unpadded for bucket in buffer.buckets]
    before = [0, *accumulate(paddings)]
    return {
        parameter: (start - before[bucket], end - before[bucket], bucket)
        for parameter, (start, end, bucket) in buffer.param_index_map.items()
    }
