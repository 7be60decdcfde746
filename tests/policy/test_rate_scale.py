"""The factors of the learning rate, against their formulas written naively."""

import math

import pytest
import torch

from megatron_sspo.policy.optimizer import rate_scale
from megatron_sspo.run import Optimizer

LENGTHS = [2, 1, 3]
LOG_RATIO = [0.5, -0.2, 0.1, -0.3, 0.4, -1.0]
WEIGHTS = [math.exp(0.3), math.exp(0.1), math.exp(-0.9)]
ESS = sum(WEIGHTS) ** 2 / sum(w * w for w in WEIGHTS) / 3
KL = sum(math.exp(x) - 1 - x for x in LOG_RATIO) / 6


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, 1.0),
        ({"full_rate_ess": 1.0}, math.sqrt(ESS)),
        ({"full_rate_ess": 0.95}, math.sqrt(ESS / 0.95)),
        ({"full_rate_ess": 0.5}, 1.0),
        ({"full_rate_kl": 0.01}, math.sqrt(0.01 / KL)),
        ({"full_rate_kl": 1.0}, 1.0),
        ({"full_rate_ess": 1.0, "full_rate_kl": 0.01}, math.sqrt(0.01 / KL)),
        ({"full_rate_ess": 1.0, "full_rate_kl": 1.0}, math.sqrt(ESS)),
    ],
)
def test_the_smaller_factor(rule, expected) -> None:
    found = rate_scale(Optimizer(**rule), torch.tensor(LOG_RATIO), LENGTHS, [2, 0, 1])
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rule", [{"full_rate_ess": 1.0}, {"full_rate_kl": 1e-6}])
def test_the_rate_is_full_on_policy(rule) -> None:
    assert rate_scale(Optimizer(**rule), torch.zeros(6), LENGTHS, range(3)) == 1.0


def test_weights_that_overflow() -> None:
    """One sequence of three outweighs the others by far."""
    found = rate_scale(Optimizer(full_rate_ess=1.0), torch.tensor([900.0, 0.0, 0.0]), [1, 1, 1], range(3))
    assert found == pytest.approx(math.sqrt(1 / 3))


def test_branches_of_an_episode_are_one() -> None:
    """The ratio of an episode is the product over its branches, which need not stand beside each other."""
    found = rate_scale(Optimizer(full_rate_ess=1.0), torch.tensor([0.5, 0.1, -0.2]), [1, 1, 1], [0, 1, 0])
    first, second = math.exp(0.3), math.exp(0.1)
    assert found == pytest.approx(math.sqrt((first + second) ** 2 / (first**2 + second**2) / 2), rel=1e-6)
