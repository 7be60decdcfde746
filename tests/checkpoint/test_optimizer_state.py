"""The ranks of a data-parallel group write equal shares of the optimizer's state."""

import pytest

from megatron_sspo.checkpoint.optimizer_state import writers


def slices_of(sizes: list[int], num_ranks: int, *, bucket: int) -> list[dict[int, tuple[int, int]]]:
    """Returns who holds what if parameters lie one after the other in buckets of a length, each cut for all ranks."""
    found, start, each = [], 0, bucket // num_ranks
    for size in sizes:
        parts: dict[int, tuple[int, int]] = {}
        for position in range(start, start + size):
            rank = position % bucket // each
            begin, _ = parts.get(rank, (position - start, 0))
            parts[rank] = (begin, position - start + 1)
        found.append(parts)
        start += size
    return found


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "sizes",
    [
        [12] * 96,
        [600, *[12] * 96, 600],  # an embedding and an output layer
        [48],  # fewer than ranks
        [1, 50, 1, 50] * 12,
    ],
)
@pytest.mark.parametrize("buckets", [1, 4])
def test_no_rank_writes_more_than_an_equal_share_and_the_largest_tensor(sizes, num_ranks, buckets) -> None:
    length = -(-sum(sizes) // (buckets * num_ranks)) * num_ranks
    chosen = writers(sizes, slices_of(sizes, num_ranks, bucket=length), num_ranks)
    loads = [sum(size for size, writer in zip(sizes, chosen, strict=True) if writer == r) for r in range(num_ranks)]
    assert max(loads) <= sum(sizes) / num_ranks + max(sizes)
    assert sum(loads) == sum(sizes)


def test_a_rank_writes_what_it_holds() -> None:
    """Nothing is sent but of parameters that lie on two ranks, if there is one bucket."""
    sizes = [10] * 30
    slices = slices_of(sizes, 4, bucket=300)
    chosen = writers(sizes, slices, 4)
    sent = sum(
        end - start
        for parts, writer in zip(slices, chosen, strict=True)
        for rank, (start, end) in parts.items()
        if rank != writer
    )
    assert sent <= 3 * 10
