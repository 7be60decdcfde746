"""The key-value cache for decoding: that of Transformers, but it is not copied at every step.

Transformers appends tokens by concatenation, and copies what is left when rows are removed. Here tokens are written
into memory that is allocated ahead, and a removal moves only as many rows as are removed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

_ROOM = 64  # tokens for which memory is allocated ahead


def key_value_cache(config: PreTrainedConfig) -> DynamicCache:
    """Returns an empty cache. Only layers of full attention differ from those of Transformers."""
    cache = DynamicCache(config=config)
    cache.layers = [_Layer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def order_without(finished: Sequence[bool]) -> list[int]:
    """Returns the rows that are left. Rows from the end take the places of finished ones, so that few rows move."""
    size = len(finished) - sum(finished)
    from_the_end = (place for place in range(size, len(finished)) if not finished[place])
    return [next(from_the_end) if finished[place] else place for place in range(size)]


class _Layer(DynamicLayer):
    """The keys and values of one layer, [rows, heads, tokens, width], which are views of memory with room for more."""

    _memory: tuple[Tensor, ...]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Appends tokens, and returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._memory = key_states[:, :, :0], value_states[:, :, :0]
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if after > self._memory[0].shape[-2]:
            self._memory = tuple(_with_room(memory, before, after + _ROOM) for memory in self._memory)
        for memory, states in zip(self._memory, (key_states, value_states), strict=True):
            memory[:, :, before:after] = states
        return self._view(after)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Reorders rows in place: row i takes the content of row indices[i]. Rows that stay are not copied."""
        length, size = self.get_seq_length(), len(indices)
        if length == 0:
            return
        if size > len(self._memory[0]):
            self._memory = tuple(memory[indices] for memory in self._memory)
        else:
            moved = (indices != torch.arange(size, device=indices.device)).nonzero().squeeze(-1)
            for memory in self._memory:
                memory[moved, :, :length] = memory[indices[moved], :, :length]
            self._memory = tuple(memory[:size] for memory in self._memory)
        self._view(length)

    def _view(self, length: int) -> tuple[Tensor, Tensor]:
        """Sets the keys and values to the first `length` tokens of the memory, and returns them."""
        keys, values = (memory[:, :, :length] for memory in self._memory)
        self.keys, self.values = keys, values
        return keys, values


def _with_room(memory: Tensor, length: int, room: int) -> Tensor:
    """Returns a copy of the first `length` tokens, with memory for `room` tokens."""
    rows, heads, _, width = memory.shape
    copy = memory.new_empty(rows, heads, room, width)
    copy[:, :, :length] = memory[:, :, :length]
    return copy
