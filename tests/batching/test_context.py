"""The zigzag split of a packed row, and the permutation that undoes it."""

import torch

from megatron_sspo.batching.context import gather_order, zigzag

BORDERS = [0, 8, 12]  # two sequences, for two ranks


def test_zigzag_gives_a_rank_one_part_from_each_half():
    assert zigzag(BORDERS, 0, 2).tolist() == [0, 1, 6, 7, 8, 11]
    assert zigzag(BORDERS, 1, 2).tolist() == [2, 3, 4, 5, 9, 10]


def test_one_rank_holds_everything_in_order():
    assert zigzag(BORDERS, 0, 1).tolist() == list(range(12))


def test_zigzag_balances_causal_attention():
    borders = [0, 48]
    work = [int((zigzag(borders, rank, 4) + 1).sum()) for rank in range(4)]
    assert len(set(work)) == 1


def test_gather_order_restores_the_row_order():
    is_response = torch.tensor([0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0], dtype=torch.bool)
    counts, order = gather_order(is_response, BORDERS, 2)
    assert counts == [1, 6]
    gathered = torch.cat([positions[is_response[positions]] for positions in (zigzag(BORDERS, r, 2) for r in range(2))])
    assert gathered[order].tolist() == is_response.nonzero()[:, 0].tolist()


def test_a_rank_without_response_tokens():
    counts, order = gather_order(torch.tensor([0, 1, 0, 0], dtype=torch.bool), [0, 4], 2)
    assert counts == [0, 1] and order.tolist() == [0]
