"""Advantages of scored groups: of rewards, of rollouts, of tokens, and over a whole cycle."""

from dataclasses import replace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.advantages import check_advantage, with_advantages, without_truncated
from megatron_sspo.rollout.metrics import reward_metrics
from tests.rollout.test_collect import collected, scripted


def test_advantages_are_filled_in() -> None:
    (group,) = with_advantages(collected("a", group_size=3), "group_centered")
    assert [r.advantage for r in group.rollouts] == [-1.0, 0.0, 1.0]
    (group,) = with_advantages(collected("a"), "group_relative")
    assert [r.advantage for r in group.rollouts] == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-3)
    (group,) = with_advantages(collected("a"), f"{__file__}:everything")
    assert [r.advantage for r in group.rollouts] == [10.0, 20.0]


def everything(rewards: torch.Tensor) -> torch.Tensor:
    return 10 * rewards


def test_a_group_without_reward_variance_has_zero_advantages_and_is_counted() -> None:
    groups = collected("ab", scripted(lambda prompt, index: "xx" if prompt.id == "a" else "x" * (index + 1)))
    groups = with_advantages(groups, "group_relative")
    assert [r.advantage for r in groups[0].rollouts] == [0.0, 0.0]
    assert reward_metrics(groups, policy_version=5)["reward/zero_variance_groups"] == 0.5


def test_no_function_sees_rounding_errors_of_rewards() -> None:
    groups = collected("a")
    parts = [{"a": 0.1, "b": 0.2}, {"a": 0.3}]
    rollouts = [replace(r, reward_parts=p) for r, p in zip(groups[0].rollouts, parts, strict=True)]
    for name in ("group_relative", "gdpo", f"{__file__}:everything"):
        (group,) = with_advantages([replace(groups[0], rollouts=rollouts)], name)
        assert len({r.advantage for r in group.rollouts}) == 1, name


def test_an_advantage_of_rollouts_is_refused_where_an_episode_may_have_several() -> None:
    check_advantage(f"{__file__}:first_tokens", 4)
    check_advantage(f"{__file__}:everything", 4, may_branch=True)
    with pytest.raises(UserError, match="an agent's episode may have several: set"):
        check_advantage(f"{__file__}:first_tokens", 4, may_branch=True)


# --- of rollouts, of tokens, over a cycle


def first_tokens(rewards, rollouts):
    """Returns the first token of each response."""
    return torch.tensor([float(rollout.tokens[0]) for rollout in rollouts])


def sampled_tokens(rewards, rollouts):
    """Returns each token as its own advantage."""
    return [torch.tensor(rollout.tokens, dtype=torch.float64) for rollout in rollouts]


def centered(rewards):
    return rewards


centered.batch_step = lambda values: values - values.mean()


def name(function) -> str:
    return f"{__file__}:{function.__name__}"


def advantages_of(groups):
    return [[rollout.advantage for rollout in group.rollouts] for group in groups]


def test_a_function_may_read_the_rollouts():
    assert advantages_of(with_advantages(collected("ab"), name(first_tokens))) == [[97.0, 97.0], [98.0, 98.0]]
    (group,) = with_advantages(collected("a", group_size=3), "opo")  # lengths 2, 3, 4 and rewards 1, 2, 3
    assert [r.advantage for r in group.rollouts] == pytest.approx([1 - 20 / 9, 2 - 20 / 9, 3 - 20 / 9])


def test_advantages_of_tokens_are_0_at_observations():
    (group,) = collected("a")
    long = replace(group.rollouts[1], observed=((1, 2),))
    (group,) = with_advantages([replace(group, rollouts=[group.rollouts[0], long])], name(sampled_tokens))
    assert [r.token_advantages.tolist() for r in group.rollouts] == [[97.0, 0.0], [97.0, 0.0, 0.0]]
    assert [r.advantage for r in group.rollouts] == [48.5, 48.5], "means over sampled tokens"


def test_a_step_over_the_cycle_sees_all_groups():
    groups = collected("ab", scripted(lambda prompt, index: "x" * (index + 1 + 2 * (prompt.id == "b"))))
    assert advantages_of(with_advantages(groups, name(centered))) == [[-1.5, -0.5], [0.5, 1.5]]
    whitened = advantages_of(with_advantages(groups, "reinforce_plus_plus"))
    assert sum(map(sum, whitened)) == pytest.approx(0.0, abs=1e-12)
    assert torch.tensor(whitened).flatten().std().item() == pytest.approx(1.0)
    assert with_advantages([], "reinforce_plus_plus") == []


def cut(rewards, rollouts):
    return [torch.zeros(1) for _ in rollouts]


def divided_by_std(rewards):
    return (rewards - rewards.mean()) / rewards.std()


def with_step(step):
    def function(rewards):
        return rewards - rewards.mean()

    function.batch_step = step
    return function


step_divided = with_step(lambda values: values / values.std())
step_raises = with_step(lambda values: values / no_such_name)  # noqa: F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("divided_by_std", r"returned tensor\(\[nan.*0.0.*must be a tensor of .* also where all rewards are equal"),
        ("cut", "must be a tensor of as many finite numbers"),
        ("best", "no advantage named 'best': choose one of gdpo, group_centered, group_relative"),
        (
            "step_divided",
            "the batch_step of the advantage .* returned tensor.*nan.* also where all advantages are equal",
        ),
        ("step_raises", "the batch_step of the advantage .* cannot be computed .* line .*: NameError"),
    ],
)
@pytest.mark.filterwarnings("ignore:std..:UserWarning")
def test_a_mistake_of_a_function_of_ones_own_is_found_before_the_run(function, message):
    with pytest.raises(UserError, match=message):
        check_advantage(function if function == "best" else f"{__file__}:{function}", 4)


@pytest.mark.parametrize(
    ("function", "has_gradient"),
    [("reinforce_plus_plus", True), ("gdpo", True), ("group_relative", False), ("opo", False)],
)
def test_groups_of_equal_rewards_that_have_a_gradient_cannot_be_replaced(function, has_gradient):
    check_advantage(function, 4)
    if not has_gradient:
        check_advantage(function, 4, refills=1)
        return
    with pytest.raises(UserError, match=f"refills is 1, .* and the advantage '{function}' gives them a gradient"):
        check_advantage(function, 4, refills=1)


def test_rewards_that_a_function_refuses_are_one_sentence():
    groups = collected("a")
    (group,) = [replace(g, rollouts=[replace(r, reward_parts={"answer": -1.0}) for r in g.rollouts]) for g in groups]
    with pytest.raises(UserError, match=r"'max_rl' cannot be computed .*\[-1.0, -1.0\].* must not be negative"):
        with_advantages([group], "max_rl")


def test_what_a_function_must_return():
    for function in (first_tokens, sampled_tokens, centered):
        check_advantage(name(function), 4)
    check_advantage(name(sampled_tokens), 10**9)  # with a smaller group
    with pytest.raises(UserError, match=r"returned \[tensor.* for 2 rewards, \[1.0, 2.0\]: it must be a tensor"):
        with_advantages(collected("a"), name(cut))


def test_responses_that_were_cut_off_have_no_advantage_and_count_in_the_baseline():
    for estimator in ("group_centered", name(sampled_tokens)):
        (group,) = with_advantages(collected("a", group_size=3), estimator)
        cut = [replace(group.rollouts[0], finish_reason="length"), *group.rollouts[1:]]
        (masked,) = without_truncated([replace(group, rollouts=cut)])
        assert masked.rollouts[0].advantage == 0 and group.rollouts[0].advantage != 0
        values = masked.rollouts[0].token_advantages
        assert (values is None) == (estimator == "group_centered") and (values is None or not values.any())
        assert all(after is before for after, before in zip(masked.rollouts[1:], cut[1:], strict=True))
