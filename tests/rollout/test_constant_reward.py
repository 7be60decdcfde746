"""The warning for a reward from which nothing is learned: its causes, and when there is none."""

from dataclasses import replace

import pytest

from megatron_sspo.rollout.constant_reward import ConstantReward
from megatron_sspo.types import Prompt, RolloutGroup
from tests.responses import response
from tests.rollout import tiny_models

HALF, WHOLE = {"answer": 0.5}, {"answer": 0.0, "format": 0.25}


def group(id, *responses, end="stop"):
    """Returns a group of responses, each a text and the parts of its reward."""
    rollouts = []
    for text, parts in responses:
        tokens = [*tiny_models.tokenizer().encode(text), *([tiny_models.EOS] if end == "stop" else [])]
        rollouts.append(response(tokens, text=text, finish_reason=end, reward_parts=parts))
    return RolloutGroup(prompt=Prompt(id=id, tokens=(3,), answer="7"), rollouts=rollouts)


def looked(*batches, **row):
    """Returns what is said after each of the batches, of which the first two are those of the first cycles."""
    constant = ConstantReward(2, 8, tiny_models.tokenizer())
    return [constant.look({"update": number, **row}, batch) for number, batch in enumerate(batches, 1)]


NOTHING = {"answer": 0.0, "format": 0.0}
CASES = {
    "failed": (
        [group("a", ("x", HALF), ("y", HALF))],
        {"agent/failed": 0.75, "agent/late": 0.25},
        "every episode failed",
    ),
    "empty": ([group("a", ("", NOTHING), (" ", NOTHING))], {}, "every response is empty"),
    "truncated": (
        [group("a", ("x", NOTHING), ("y", NOTHING), end="length")],
        {},
        "sampling.max_tokens=8 tokens: raise it",
    ),
    "no format": ([group("a", ("x", NOTHING), ("y", NOTHING))], {}, "begins or ends with the tags"),
    "all 0": ([group("a", ("x", {"answer": 0.0}), ("y", {"answer": 0.0}))], {}, "reward 0: the questions are too hard"),
    "all equal": (
        [group("a", ("x", HALF), ("y", HALF))],
        {},
        "has the reward 0.5: the reward does not tell them apart",
    ),
    "one text": ([group("a", ("x", HALF), ("x", HALF)), group("b", ("y", WHOLE), ("y", WHOLE))], {}, "the same text"),
    "by prompt": (
        [group("a", ("x", HALF), ("z", HALF)), group("b", ("y", WHOLE), ("y", WHOLE))],
        {},
        "the prompt alone",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_named_once_with_an_example(name):
    batch, row, cause = CASES[name]
    nothing, warning, after = looked(batch, batch, batch, **row)
    assert nothing is None and after is None
    assert cause in warning and "for prompt a (gold answer '7'" in warning
    assert warning.startswith(f"no response of the first {4 * len(batch)} has an advantage, so nothing is learned: ")


def test_the_example_shows_special_tokens():
    assert looked(*[CASES["all 0"][0]] * 2)[1].endswith(": 'x<eos>'")
    long = group("a", ("x" * 400 + "y" * 400, NOTHING), ("x", NOTHING))
    assert looked([long], [long])[1].endswith(f": '{'x' * 300} … {'y' * 295}<eos>'")


def test_nothing_is_said_where_a_response_has_an_advantage():
    batch = CASES["all 0"][0]
    first, *others = batch[0].rollouts
    learned = [replace(batch[0], rollouts=[replace(first, advantage=0.5), *others])]
    assert looked(learned, batch, batch) == [None] * 3
    assert looked(batch, learned, batch) == [None] * 3
