"""The KL in the reward is that of Transformers' log-probs, and all ranks of a layout have it before advantages."""

from dataclasses import replace
from pathlib import Path

import kl_in_reward
import pytest
import torch
from launcher import launch
from tiny_policy import log_probs, read_batch, reference

from megatron_sspo.batching.holders import with_rollouts
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.kl_in_reward import with_kl
from megatron_sspo.types import rollouts_of


@pytest.mark.parametrize("name", kl_in_reward.LAYOUTS)
def test_rewards_and_advantages(folders, batches, device, tmp_path, name):
    arguments = folders["moe"].parent, batches["moe"].parent, tmp_path
    size = kl_in_reward.LAYOUTS[name].parallel.num_processes
    if size == 1:
        kl_in_reward.measure(name, device, *arguments)
    else:
        launch(Path(kl_in_reward.__file__), size, *arguments, name)
    found = [torch.load(tmp_path / f"{name} {rank}.pt", weights_only=False) for rank in range(size)]
    policy, start = reference(tmp_path / f"{name}, exported"), reference(folders["moe"])
    number, ratios = 0, []
    for group in read_batch(batches["moe"]):  # three groups, and three updates of one group
        expected, advantages = [], []
        for rollout in group.rollouts:
            with torch.no_grad():
                now, before = (log_probs(model, group.prompt, rollout).double() for model in (policy, start))
            ratios.append(float((now - before).sum()))
            expected.append(rollout.reward - kl_in_reward.COEF * ratios[-1])
        centered = torch.tensor(expected) - torch.tensor(expected).mean()
        advantages = {"group_relative": centered / centered.std(), "kl_in_reward:of_tokens": centered}
        for index, rollout in enumerate(group.rollouts):
            for kind, values in advantages.items():
                of_ranks = [each[kind][number] for each in found]
                assert len({each.reward_parts["kl"] for each in of_ranks}) == 1
                assert len({each.advantage for each in of_ranks}) == 1
                assert of_ranks[0].reward == pytest.approx(expected[index], abs=1e-4)
                if kind == "group_relative":
                    assert of_ranks[0].advantage == pytest.approx(float(values[index]), abs=1e-3)
                    continue
                wanted = [float(values[index]) * (0.5 if place else 1) for place in range(len(rollout.tokens))]
                for each in of_ranks:
                    if not each.is_outline:
                        own = each.response_mask()
                        assert each.token_advantages[own] == pytest.approx(torch.tensor(wanted).numpy()[own], abs=1e-4)
            number += 1
    assert max(map(abs, ratios)) > 0.1, "the policy has not moved"
    assert all(any(not each.is_outline for each in of_rank["group_relative"]) for of_rank in found)
    first, later = found[0]["group_relative"][0], found[0]["group_relative"][-1]
    assert first.old_log_probs is None and later.old_log_probs is not None
    assert found[0]["kl_old"] == 0.0  # the first update is on-policy, to the bit


def test_a_part_of_the_same_name(batches):
    batch = read_batch(batches["moe"])
    named = with_rollouts(batch, [replace(rollout, reward_parts={"kl": 1.0}) for rollout in rollouts_of(batch)])
    with pytest.raises(UserError, match="'kl', and kl_in_reward, which is above 0, adds one of that name"):
        with_kl(named, 0.1)
