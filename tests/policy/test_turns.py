"""Observations do not count: a rollout of several turns is equal to one turn of the tokens that the policy sampled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from layouts import cases

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.objective import Penalties, sspo
from megatron_sspo.policy.forward_step import policy_loss
from megatron_sspo.policy.metrics import merge_reports, update_metrics
from megatron_sspo.rollout.advantages import with_advantages
from megatron_sspo.types import Prompt, RolloutGroup
from tests.responses import response

CASES = cases() | {
    "SSPO, KL, entropy": (sspo(), Penalties(kl_coef=0.1, kl_estimator="k3", entropy_coef=0.02), cases()["GRPO"][2])
}
# per response: number of tokens, and the ranges that an environment wrote
RESPONSES = [(9, ((2, 5), (7, 8))), (6, ((1, 5),)), (4, ()), (0, ())]
FIELDS = ("rollout_log_probs", "old_log_probs", "reference_log_probs", "old_entropy")


def acting():
    """A group in which only part of each response is the policy's, with arbitrary values at the other tokens."""
    generator = torch.Generator().manual_seed(0)

    def numbers(count):
        return tuple((-3 * torch.rand(count, generator=generator)).tolist())

    rollouts = [
        response(
            range(10, 10 + length),
            observed=observed,
            reward_parts={"answer": float(number % 2), "format": 0.25 * number},
            **{name: numbers(length) for name in FIELDS[:-1]},
            old_entropy=np.linspace(1, 2, length),
        )
        for number, (length, observed) in enumerate(RESPONSES)
    ]
    return RolloutGroup(prompt=Prompt(id="a", tokens=(1, 2, 3), answer=""), rollouts=rollouts)


def single(rollout):
    """Returns the same rollout without the observations, as a single turn."""

    mask = rollout.response_mask()
    changes = {name: getattr(rollout, name)[mask] for name in ("tokens", *FIELDS)}
    return replace(rollout, **changes, observed=())


def with_single(group):
    return replace(group, rollouts=[single(rollout) for rollout in group.rollouts])


def microbatch(group):
    return make_microbatch([(group.prompt.tokens, rollout) for rollout in group.rollouts])


@pytest.mark.parametrize("estimator", ["group_relative", "group_centered", "leave_one_out"])
def test_advantages(estimator):
    several, one = (with_advantages([group], estimator)[0] for group in (acting(), with_single(acting())))
    assert [r.advantage for r in several.rollouts] == [r.advantage for r in one.rollouts]
    assert len({r.advantage for r in several.rollouts}) == 4


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_metrics(name):
    objective, penalties, correction = CASES[name]
    (group,) = with_advantages([acting()], "group_relative")
    loss = policy_loss(objective, penalties, correction, scale=0.25)
    found = []
    for given in (group, with_single(group)):
        batch = microbatch(given)
        assert len(batch.response_tokens) == batch.segments.num_tokens == 5 + 2 + 4 + 0
        log_probs = (-2 * torch.rand(11, generator=torch.Generator().manual_seed(1))).requires_grad_()
        entropy = torch.rand(11, generator=torch.Generator().manual_seed(2))
        entropy = (batch.old_entropy * (0.8 + 0.4 * entropy)).requires_grad_()
        total, _, report = loss(batch, log_probs, entropy)
        gradient = torch.autograd.grad(total, (log_probs, entropy), allow_unused=True)
        metrics = update_metrics(merge_reports([report], order=range(4), divisor=4))
        found.append((total.detach(), gradient[0], 0 if gradient[1] is None else gradient[1].sum(), metrics))
    assert found[0][0] == found[1][0] and found[0][0] != 0
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2:] == found[1][2:]
