import gc

import pytest
import torch

from sspo_rehearsal.fake_floats import FakeFloats
from sspo_rehearsal.ledger import Ledger
from sspo_rehearsal.recorder import route_of


@pytest.fixture
def mode() -> FakeFloats:
    return FakeFloats(Ledger(), 4, route_of(4), received=(8, 1, 16))


def test_floats_have_no_storage_and_integers_have_values(mode: FakeFloats) -> None:
    with mode:
        product = torch.ones(300_000, 300_000) @ torch.ones(300_000, 7)
        numbers = torch.arange(4) * 2
    assert product.shape == (300_000, 7) and product.is_meta
    assert numbers.tolist() == [0, 2, 4, 6]
    assert mode.ledger.flops["build"] == 2 * 300_000 * 300_000 * 7


def test_memory_is_counted_by_category_until_it_is_freed(mode: FakeFloats) -> None:
    with mode, mode.ledger.counted_as("weights"):
        weight = torch.zeros(1000, dtype=torch.bfloat16)
        with mode.ledger.counted_as("gradients"):
            gradient = torch.zeros(1000)
        part = weight[:10]
    assert mode.ledger.live == {"weights": 2000, "gradients": 4000}
    del gradient
    gc.collect()
    assert mode.ledger.live.total() == 2000 and sum(mode.ledger.peak.values()) == 6000
    assert mode.ledger.peak == {"weights": 2000, "gradients": 4000}
    del weight
    assert mode.ledger.live.total() == 2000, "a view keeps its storage"
    del part
    assert mode.ledger.live.total() == 0
    mode.ledger.reset_peak()
    assert sum(mode.ledger.peak.values()) == 0


def test_sizes_follow_from_masks_and_numbers(mode: FakeFloats) -> None:
    with mode:
        values = torch.randn(6, 3)
        mask = torch.tensor([True, False, True, True, False, False])
        assert values[mask].shape == (3, 3)
        assert values.masked_select(mask[:, None]).shape == (9,)
        assert values[torch.tensor([0, 0, 5, 1])].shape == (4, 3)
        values[mask] = 0.0
        assert values.shape == (6, 3)
