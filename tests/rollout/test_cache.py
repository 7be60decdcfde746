"""The key-value cache for decoding against that of Transformers."""

import random
from typing import Any

import pytest
import torch
from transformers import DynamicCache, MistralConfig, Qwen3Config
from transformers.cache_utils import DynamicSlidingWindowLayer

from megatron_sspo.rollout.embedded.cache import key_value_cache, order_without

CONFIG = Qwen3Config(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)


def tensors(cache: DynamicCache) -> list[Any]:
    """Returns the keys and values of all layers."""
    return [tensor for layer in cache for tensor in layer[:2]]


@pytest.mark.parametrize("seed", range(20))
def test_it_holds_what_that_of_transformers_holds(seed: int) -> None:
    draw = random.Random(seed)
    random_numbers = torch.Generator().manual_seed(seed)
    ours, theirs = key_value_cache(CONFIG), DynamicCache(config=CONFIG)
    rows = draw.randint(1, 6)
    for _ in range(30):
        new = draw.choice([1, 1, 1, 1, draw.randint(2, 80)])
        states = torch.randn(2, 2, rows, 2, new, 8, generator=random_numbers)
        for layer, (keys, values) in enumerate(states):
            found, expected = (cache.update(keys, values, layer) for cache in (ours, theirs))
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        if draw.random() < 0.3:
            indices = torch.tensor([draw.randrange(rows) for _ in range(draw.randint(1, 6))])
            rows = len(indices)
            for cache in (ours, theirs):
                cache.batch_select_indices(indices)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(1, 0) == theirs.get_mask_sizes(1, 0)
        for mine, other in zip(tensors(ours), tensors(theirs), strict=True):
            assert torch.equal(mine, other)


def test_rows_may_be_selected_before_there_are_tokens() -> None:
    cache = key_value_cache(CONFIG)
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.get_seq_length() == 0


def test_tokens_are_written_without_a_copy_of_those_before() -> None:
    cache = key_value_cache(CONFIG)
    (keys, _), *_ = (cache.update(torch.ones(3, 2, 1, 8), torch.ones(3, 2, 1, 8), 0) for _ in range(2))
    more, _ = cache.update(torch.ones(3, 2, 1, 8), torch.ones(3, 2, 1, 8), 0)
    cache.batch_select_indices(torch.tensor([0, 2]))
    assert keys.data_ptr() == more.data_ptr() == tensors(cache)[0].data_ptr()


def test_layers_with_a_window_stay_those_of_transformers() -> None:
    layers = key_value_cache(MistralConfig(num_hidden_layers=2, sliding_window=4)).layers
    assert [type(layer) for layer in layers] == [DynamicSlidingWindowLayer] * 2


@pytest.mark.parametrize("seed", range(20))
def test_the_order_has_every_row_that_is_left_and_moves_few(seed: int) -> None:
    draw = random.Random(seed)
    finished = [draw.random() < draw.choice([0.1, 0.5, 0.9]) for _ in range(draw.randint(1, 30))]
    order = order_without(finished)
    assert sorted(order) == [place for place, ended in enumerate(finished) if not ended]
    assert sum(place != row for place, row in enumerate(order)) <= sum(finished)
