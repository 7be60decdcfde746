"""Log-probs and entropy of two ranks with half of the columns, against the formula in float64."""

from pathlib import Path

import pytest
import torch
import vocab_parallel
from launcher import launch
from vocab_parallel import BUDGETS, GRADIENTS, LIKELIEST, SHAPES, VOCAB_SIZE, expected, expected_likeliest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    results = tmp_path_factory.mktemp("two_ranks")
    launch(Path(vocab_parallel.__file__), 2, results)
    return [torch.load(results / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("which", GRADIENTS)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_two_ranks(two_ranks, rows, width, which, budget):
    first, second = (ranks[rows, which, budget] for ranks in two_ranks)
    wanted = expected(rows, which)
    for name, tensor in first.items():
        if name == "weight.grad":
            found = torch.cat([tensor, second[name]])
            assert not found[VOCAB_SIZE:].any()
            found = found[:VOCAB_SIZE]
        elif name == "hidden.grad":
            found = tensor + second[name]  # each rank has a share of the gradient
        else:
            assert torch.equal(tensor, second[name])
            found = tensor
        torch.testing.assert_close(found, wanted[name], rtol=0, atol=1e-11)


@pytest.mark.parametrize("k", LIKELIEST)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_likeliest_tokens_of_two_ranks(two_ranks, rows, width, k):
    for ranks in two_ranks:
        for found, wanted in zip(ranks[rows, k], expected_likeliest(rows, k), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
