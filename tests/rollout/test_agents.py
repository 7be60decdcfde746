"""Agents on the embedded engine."""

import asyncio
import logging
import math
from pathlib import Path

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.recipe import load_recipe
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.types import Sampling
from packages.agents.tests.endpoints import post, say, user
from tests.rollout import tiny_models
from tests.rollout.talking_models import agents, build, prompt, tokenizer

RECIPE = Path(__file__).parents[2] / "examples" / "tiny_moe.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("models") / "talking")


@pytest.fixture(scope="module")
def engine(folder):
    engine = embedded.engine(folder)
    engine.load_weights(tiny_models.weights(folder).items(), 3)
    return engine


@pytest.fixture
def generate(engine):
    """Runs an agent and returns the groups of its prompts."""
    opened = []

    def run(agent, prompts=None, *, group_size=2, seed=0, sampling=None, **limits):
        opened.append(agents(agent, **limits))
        generation = engine.start(
            prompts or [prompt()],
            sampling or Sampling(max_tokens=256),
            group_size=group_size,
            seed=seed,
            environment=opened[-1],
        )
        found = {}
        while completed := generation.wait():
            found.update(completed)
        run.metrics = opened[-1].metrics()
        return [found[place] for place in sorted(found)]

    yield run
    for one in opened:
        one.close()


@pytest.fixture
def logged(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("megatron_sspo"), "propagate", True)  # which a run's display sets to False
    return caplog


async def three_turns(base_url, prompt):
    messages = [*prompt.messages]
    for number in range(3):
        messages.append(await say(base_url, messages))
        messages.append(user(f"and {number}?"))
    return 0.5


def test_conversations_are_rollouts_whose_turns_are_learned_from(generate, folder) -> None:
    """Checks places, the log-probs of the policy's tokens, and what the template writes between two turns."""
    prompts = [prompt(f"add {number}") for number in range(3)]
    groups = generate(three_turns, prompts)
    assert [group.prompt.id for group in groups] == [one.id for one in prompts]
    model = tiny_models.reference(folder)
    for group, given in zip(groups, prompts, strict=True):
        assert group.prompt.tokens == given.tokens and len(group.rollouts) == 2
        assert group.rollouts[0].tokens.tolist() != group.rollouts[1].tokens.tolist()
        for rollout in group.rollouts:
            assert (rollout.num_turns, len(rollout.observed), rollout.branches) == (3, 2, 1)
            assert (rollout.reward_parts, rollout.policy_version) == ({"agent": 0.5}, 3)
            tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens.tolist()]])
            log_probs = model(tokens).logits[0].log_softmax(-1)[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
            own, expected = rollout.response_mask(), log_probs[len(group.prompt.tokens) - 1 :].numpy()
            assert rollout.rollout_log_probs[own] == pytest.approx(expected[own], abs=1e-4)
            assert (rollout.rollout_log_probs[~own] == 0).all()
            for number, (first, beyond) in enumerate(rollout.observed):
                text = tokenizer().decode(rollout.tokens[first:beyond].tolist())
                ended = rollout.tokens[first - 1] == tiny_models.EOS
                assert text == ("" if ended else "<eos>") + f"u:and {number}?<eos>a:"


def test_the_same_seed_gives_the_same_episodes(generate) -> None:
    first, again, other = (generate(three_turns, seed=seed)[0] for seed in (1, 1, 2))
    assert [r.tokens.tolist() for r in first.rollouts] == [r.tokens.tolist() for r in again.rollouts]
    assert [r.tokens.tolist() for r in first.rollouts] != [r.tokens.tolist() for r in other.rollouts]


def test_what_changes_the_conversation_begins_a_branch(generate) -> None:
    async def forks(base_url, prompt):
        first = await say(base_url, [*prompt.messages])
        begun = [*prompt.messages, first]
        await say(base_url, [*begun, user("left")])
        await say(base_url, [*begun, user("right")])
        await say(base_url, [*prompt.messages, {**first, "content": "rewritten"}, user("up")])
        return 1.0

    (group,) = generate(forks, group_size=2)
    assert [rollout.branches for rollout in group.rollouts] == [3] * 6
    assert [len(rollouts) for rollouts in group.episodes] == [3, 3]
    left, right, up = group.episodes[0]
    sampled = [r.tokens[r.response_mask()].tolist() for r in (left, right, up)]
    first = left.tokens[: left.observed[0][0]].tolist()
    assert sampled[0][: len(first)] == first, "the shared turn is learned from in the first branch"
    assert right.tokens[: len(first)].tolist() == first
    assert right.observed[0][0] == 0, "and only observed in the second"
    assert right.num_turns == up.num_turns == 1
    assert up.observed[0][0] == 0
    for rollout in group.rollouts:
        assert rollout.num_response_tokens == rollout.response_mask().sum() > 0


def test_an_agent_that_never_asks_has_an_empty_rollout(generate) -> None:
    async def silent(base_url, prompt):
        return {"answer": 0.0, "format": 0.25}

    (group,) = generate(silent)
    assert [len(rollout.tokens) for rollout in group.rollouts] == [0, 0]
    assert group.rollouts[0].reward_parts == {"answer": 0.0, "format": 0.25}
    assert group.rollouts[0].policy_version == 3


def test_an_agent_that_fails_after_a_turn_gets_the_reward_of_failure(generate) -> None:
    async def fails(base_url, prompt):
        await say(base_url, [*prompt.messages])
        raise RuntimeError("the answer was no JSON")

    (group,) = generate(fails, failure_reward=-1.0)
    assert [rollout.reward for rollout in group.rollouts] == [-1.0, -1.0]
    assert all(len(rollout.tokens) for rollout in group.rollouts)
    assert generate.metrics["failed"] == 1.0


async def raises_at_once(base_url, prompt):
    raise RuntimeError("no such tool")


async def raises_after_a_turn(base_url, prompt):
    answer = await say(base_url, [*prompt.messages])
    return answer.mesage == prompt.answer


async def asks_for_too_much(base_url, prompt):
    await say(base_url, [user("word " * 400)])


async def never_asks(base_url, prompt):
    """Stands for a client with an address of its own: the run would train on nothing."""
    return 1.0


def returns(found):
    async def run(base_url, prompt):
        return found

    return run


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (raises_at_once, r"test_agents.py.*RuntimeError: no such tool"),
        (raises_after_a_turn, r"each of the first 16 episodes: .*test_agents.py, line \d+ .*no attribute 'mesage'"),
        (asks_for_too_much, r"the first 16 episodes, .* refused: the conversation has more than the 320 .*max_tokens"),
        (never_asks, r"none of the first 16 episodes, .* did not ask it: .* `base_url`"),
        *((returns(found), "an agent returned") for found in (math.nan, "1", {})),
    ],
)
def test_agents_from_which_nothing_can_be_learned_end_the_run(generate, run, message) -> None:
    with pytest.raises(UserError, match=message):
        generate(run, [prompt()] * 4, group_size=4)


def test_agents_whose_first_episodes_fail_in_part_do_not(generate) -> None:
    begun = []

    async def succeeds_once(base_url, prompt):
        begun.append(prompt)
        return 1.0 if len(begun) == 1 else await raises_after_a_turn(base_url, prompt)

    async def is_refused_later(base_url, prompt):
        await say(base_url, [*prompt.messages, await say(base_url, [*prompt.messages]), user("word " * 400)])

    for works in (succeeds_once, is_refused_later):
        assert sum(len(group.rollouts) for group in generate(works, [prompt()] * 4, group_size=5)) == 20


def test_failing_that_pays_is_said_once(generate, logged) -> None:
    begun = []

    async def every_second_fails(base_url, prompt):
        begun.append(prompt)
        is_odd = len(begun) % 2
        await say(base_url, [*prompt.messages])
        return -1.0 if is_odd else len(None)

    generate(every_second_fails, failure_reward=-1.0)
    assert not [record for record in logged.records if "failure_reward" in record.message]
    generate(every_second_fails, [prompt()] * 2, group_size=4)
    (failed,) = {line for record in logged.records if "TypeError" in (line := record.getMessage())}
    assert "test_agents.py, line " in failed, "an exception is shown with its line"
    (record,) = (record for record in logged.records if "failure_reward" in record.message)
    assert "failure_reward=0, and one that did not got -1: the policy learns to fail" in record.message


def test_an_agent_that_is_late_is_cancelled(generate) -> None:
    async def sleeps(base_url, prompt):
        await say(base_url, [*prompt.messages])
        await asyncio.sleep(60)

    (group,) = generate(sleeps, seconds=1.0, failure_reward=-2.0)
    assert [rollout.reward for rollout in group.rollouts] == [-2.0, -2.0]
    assert generate.metrics["late"] == 1.0


def test_budgets_end_an_episode_with_errors_that_clients_do_not_repeat(generate) -> None:
    seen = []

    async def greedy(base_url, prompt):
        messages = [*prompt.messages]
        for _ in range(3):
            status, body = await post(base_url, {"messages": messages, "max_tokens": 4})
            seen.append((status, body.get("error", {}).get("code")))
            messages = [*messages, *([body["choices"][0]["message"]] if status == 200 else []), user("more")]
        return 1.0

    generate(greedy, group_size=1, max_turns=2)
    assert seen == [(200, None), (200, None), (400, "episode_budget_exceeded")]

    async def long(base_url, prompt):
        status, body = await post(base_url, {"messages": [user("a" * 100)]})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        return 0.5

    (group,) = generate(long, group_size=1, sampling=Sampling(max_tokens=16))
    assert group.rollouts[0].reward == 0.5


def test_answers_of_a_prescribed_form_need_another_engine(generate) -> None:
    async def asks(base_url, prompt):
        for form in ("json_object", "text"):
            status, body = await post(base_url, {"messages": [user("a")], "response_format": {"type": form}})
            assert (status, body.get("error", {}).get("code")) == (
                (400, "constrained_decoding") if form == "json_object" else (200, None)
            )
        return 1.0

    (group,) = generate(asks, forced_turns="observe")
    assert [rollout.reward for rollout in group.rollouts] == [1.0, 1.0]
    settings = ["rollouts.agent=x:y", "rollouts.endpoint.forced_turns=observe"]
    with pytest.raises(UserError, match="samples no answers of a given form"):
        load_recipe(str(RECIPE), settings)
