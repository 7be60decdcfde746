"""The numbers of a metrics row, against numbers computed by hand."""

import math
from dataclasses import replace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.policy.metrics import UpdateRecord, merge_reports, update_metrics, weights_by_sequence
from megatron_sspo.processes.console import format_update
from megatron_sspo.rollout.metrics import reward_metrics
from megatron_sspo.types import Prompt, Rollout, RolloutGroup
from tests.responses import response


def record(
    log_ratio, weight=None, entropy=None, difference=None, sequence_weight=(1.0,), advantage=None, **more
) -> UpdateRecord:
    zeros = [0.0] * len(log_ratio)
    tokens = {
        "log_ratio": torch.tensor(log_ratio),
        "token_weight": torch.tensor(weight if weight is not None else zeros),
        "advantage": torch.tensor(advantage if advantage is not None else zeros),
        "entropy": torch.tensor(entropy if entropy is not None else zeros),
        "engine_difference": torch.tensor(difference if difference is not None else zeros),
    }
    sequences = {"sequence_weight": torch.tensor(list(sequence_weight))}
    return UpdateRecord(loss=0.25, tokens=tokens, sequences=sequences, order=range(len(sequence_weight)), **more)


def test_means_and_shares() -> None:
    row = update_metrics(
        record(
            [0.0, math.log(2.0), -math.log(2.0), 0.0],
            weight=[1.0, 0.25, 0.0, 0.5],
            entropy=[0.5, 1.5, 1.0, 3.0],
            difference=[0.0, -0.5, 0.25, 0.0],
            sequence_weight=[0.5, 1.5, 2.5],
            grad_norm=3.5,
            learning_rate=1e-4,
        )
    )
    # k3 = ρ − 1 − log ρ at ρ = 1, 2, 1/2, 1
    assert row["policy/kl_old"] == pytest.approx(((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2))) / 4, rel=1e-6)
    assert row["policy/loss"] == 0.25
    assert row["policy/entropy"] == 1.5
    assert row["policy/grad_norm"] == 3.5
    assert row["policy/learning_rate"] == 1e-4
    assert row["log_ratio/mean"] == 0.0
    assert row["token_weight/mean"] == 0.4375
    assert row["token_weight/below_half"] == 0.5
    assert row["token_weight/zero"] == 0.25
    assert row["sequence_weight/mean"] == 1.5
    assert row["engine/log_prob_difference_mean"] == 0.1875
    assert row["engine/log_prob_difference_max"] == 0.5
    expected = (math.expm1(-0.5) + 0.5) / 4 + (math.expm1(0.25) - 0.25) / 4
    assert row["engine/kl"] == pytest.approx(expected, rel=1e-6)
    assert row["response/tokens"] == 4.0
    assert all(type(value) is float for value in row.values())


def test_an_objective_that_reports_no_weights() -> None:
    """A function of one's own may return the loss alone."""
    whole = record([0.0, math.log(2.0)], weight=[1.0, 0.25], advantage=[1.0, -1.0])
    tokens = {name: values for name, values in whole.tokens.items() if name != "token_weight"}
    bare = replace(whole, tokens=tokens, sequences={})
    row = update_metrics(whole)
    assert update_metrics(bare) == {name: value for name, value in row.items() if "_weight/" not in name}
    ((of_sequence, of_tokens),) = weights_by_sequence(bare, [2])
    assert math.isnan(of_sequence) and of_tokens.isnan().all() and len(of_tokens) == 2
    more = {"update": 1, "reward/mean": 0.5, "response/tokens_mean": 2.0}
    assert "w<½" in format_update({**row, **more}) and "w<½" not in format_update({**update_metrics(bare), **more})


def test_sides_of_the_ratio() -> None:
    """Tokens with Â log ρ < 0 moved against their advantage; w < ½ is counted by the signs of Â and log ρ."""
    row = update_metrics(
        record(
            [0.5, 0.5, -0.5, -0.5, -0.5, 0.5, 1e-5, -1e-5, 0.5, -0.5],
            weight=[0.1, 0.9, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
            advantage=[1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0, 0.0],
        )
    )
    assert row["log_ratio/against_advantage"] == pytest.approx(0.3)
    assert {key.rpartition("/")[2]: value for key, value in row.items() if "/below_half/" in key} == pytest.approx(
        {"positive_above": 0.1, "positive_below": 0.1, "negative_above": 0.1, "negative_below": 0.1}
    )


def test_the_kl_of_a_small_step_does_not_drown_in_rounding() -> None:
    """k3 = 5e-13 at log ρ = 1e-6, which ρ − 1 − log ρ in fp32 would lose."""
    assert update_metrics(record([1e-6] * 3))["policy/kl_old"] == pytest.approx(5e-13, rel=1e-3)


def test_no_tokens_are_zeros_and_not_nan() -> None:
    row = update_metrics(record([], sequence_weight=[1.0]))
    assert all(math.isfinite(value) for value in row.values())
    assert row["response/tokens"] == 0.0
    assert row["sequence_weight/mean"] == 1.0


def report(loss: float, log_ratio: list[float], weights: list[float]) -> dict:
    tokens = dict.fromkeys(
        ("log_ratio", "token_weight", "advantage", "entropy", "engine_difference"), torch.tensor(log_ratio)
    )
    return {
        "loss": torch.tensor(loss),
        "penalty": torch.tensor(loss / 2),
        "tokens": tokens,
        "sequences": {"sequence_weight": torch.tensor(weights)},
    }


def test_two_microbatches_are_one() -> None:
    one = merge_reports([report(3.0, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0])], order=range(3), divisor=3)
    two = merge_reports([report(1.0, [0.1], [1.0]), report(2.0, [0.2, 0.3], [2.0, 3.0])], order=range(3), divisor=3)
    with_an_empty_one = merge_reports(
        [report(1.0, [0.1], [1.0]), report(0.0, [], []), report(2.0, [0.2, 0.3], [2.0, 3.0])],
        order=range(3),
        divisor=3,
    )
    assert one.loss == 1.0 and one.penalty == 0.5
    assert update_metrics(one) == update_metrics(two) == update_metrics(with_an_empty_one)


def test_names_that_only_some_microbatches_report() -> None:
    whole, bare = report(1.0, [0.1], [1.0]), report(1.0, [0.1], [1.0])
    del bare["tokens"]["token_weight"], bare["sequences"]["sequence_weight"]
    for reports, words in (
        ([whole, bare], "returned tokens token_weight in one microbatch and none in another: let it"),
        ([bare, whole], "returned tokens none in one microbatch and token_weight in another"),
        ([whole, {**whole, "sequences": {}}], "returned sequences sequence_weight in one microbatch and none"),
    ):
        with pytest.raises(UserError, match=words):
            merge_reports(reports, order=range(2), divisor=1)


def test_weights_by_sequence() -> None:
    reports = [report(1.0, [0.5, 0.25, 0.125], [2.0, 3.0]), report(0.0, [], []), report(1.0, [0.75], [1.0, 0.0])]
    merged = merge_reports(reports, order=[3, 1, 0, 2], divisor=4)
    found = [(weight, tokens.tolist()) for weight, tokens in weights_by_sequence(merged, [1, 2, 0, 1])]
    assert found == [(1.0, [0.75]), (3.0, [0.25, 0.125]), (0.0, []), (2.0, [0.5])]


def rollout(num_tokens: int, finish_reason="stop", version=3, **parts: float) -> Rollout:
    text = "x" * (num_tokens - 1)  # the last token is an end token
    more = {"finish_reason": finish_reason, "policy_version": version, "reward_parts": parts}
    return response((1,) * num_tokens, text=text, **more)


def test_rewards_and_lengths() -> None:
    prompt = Prompt(id="a", tokens=(1,), answer="")
    groups = [
        RolloutGroup(prompt=prompt, rollouts=[rollout(4, answer=1.0, format=0.5), rollout(0, answer=0.0, format=1.0)]),
        RolloutGroup(prompt=prompt, rollouts=[rollout(3, "length", answer=1.0), rollout(1, version=2, format=1.0)]),
    ]
    groups[1] = replace(groups[1], prompt=replace(prompt, id="b/a"))
    assert reward_metrics(groups, policy_version=4, sets=("a", "b")) == {
        "reward/mean": 1.125,
        "reward/mean/b": 1.0,  # and none of the set a, whose prompts have ids that begin with a/
        "reward/answer": pytest.approx(2 / 3),
        "reward/format": pytest.approx(5 / 6),
        "reward/zero_variance_groups": 0.5,
        "response/tokens_mean": 2.0,
        "response/tokens_max": 4.0,
        "response/truncated": 0.25,
        "response/empty": 0.5,
        "response/turns_mean": 1.0,
        "response/observed_tokens_mean": 0.0,
        "rollout/staleness": 1.125,  # the mean over tokens
        "rollout/staleness_max": 2.0,
    }
