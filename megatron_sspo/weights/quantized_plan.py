"""Gathers the weights for servers in FP8."""

from collections.abc import Iterable, Iterator

import torch

from megatron_sspo.weights.collectors import MAX_COLLECTORS
from megatron_sspo.weights.fp8 import BLOCK, SCALE_SUFFIX, quantized_stream
from megatron_sspo.weights.gather import Entry, GatherPlan, NamedTensor, Part
from megatron_sspo.weights.pieces import hf_shapes


def quantized(tensors: Iterable[NamedTensor], names: set[str]) -> Iterable[NamedTensor]:
    """Returns a plan, or a stream, of the same weights with those of `names` in FP8."""
    return QuantizedPlan(tensors, names) if isinstance(tensors, GatherPlan) else quantized_stream(tensors, names)


class QuantizedPlan(GatherPlan):
    """A plan that gives linear layers as FP8 values and scales (`fp8.quantize`), and other weights as they are.

    A shard may end within a block of 128 × 128, so the rank that has put a weight together quantizes all of it.
    `names` are the Hugging Face names of the weights to quantize.
    """

    def __init__(self, plan: GatherPlan, names: set[str]) -> None:
        self._plan, self._names = plan, names

    @property
    def num_bytes(self) -> int:
        dtype = self._plan._sample.dtype
        every = (Entry(*each, dtype) for row in self._plan._pieces for each in hf_shapes(row).items())
        plain = [entry for entry in every if entry.name in self._names]
        saved = sum(entry.num_bytes for entry in plain) - sum(entry.num_bytes for entry in self._quantized(plain))
        return self._plan.num_bytes - saved

    def __iter__(self) -> Iterator[NamedTensor]:
        return quantized_stream(self._plan, self._names)

    def at_rank_0(self, **options: int) -> Iterator[NamedTensor]:
        return quantized_stream(self._plan.at_rank_0(**options), self._names)

    def collectors(self, *, max_collectors: int = MAX_COLLECTORS) -> list[int]:
        return self._plan.collectors(max_collectors=max_collectors)

    def parts(self, *, bucket_bytes: int, max_collectors: int = MAX_COLLECTORS) -> Iterator[Part]:
        """Yields the parts of the plan, quantized; `bucket_bytes` counts the weights before that."""
        for part in self._plan.parts(bucket_bytes=bucket_bytes, max_collectors=max_collectors):
            tensors = None if part.tensors is None else list(quantized_stream(part.tensors, self._names))
            yield Part(part.rank, list(self._quantized(part.entries)), tensors)

    def _quantized(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for name, shape, dtype in entries:
            if name in self._names:
                yield Entry(name, shape, torch.float8_e4m3fn)
                yield Entry(f"{name}{SCALE_SUFFIX}", tuple(-(-size // BLOCK) for size in shape), torch.float32)
            else:
                yield Entry(name, shape, dtype)
