"""Groups of episodes: what a branch is, and that an episode counts once."""

import pytest

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.evaluation.answers import Answers
from megatron_sspo.rollout.advantages import with_advantages
from megatron_sspo.rollout.agents import make_group
from megatron_sspo.rollout.collect import score
from megatron_sspo.rollout.metrics import reward_metrics
from packages.agents.tests.test_tree import forced, forked, tree, turn
from sspo_agents.episodes import EpisodeResult
from tests.rollout.talking_models import prompt, tokenizer


def group_of(*episodes, rewards=({}, {})):
    found = [EpisodeResult(trajectories, None, text) for trajectories, text in episodes]
    return make_group(prompt(), found, rewards, tokenizer(), policy_version=5)


def group():
    return group_of((forked(), "3"), (tree(turn([2, 3, 4], [7])), "4"))


def test_the_rollouts_of_a_group() -> None:
    made = group()
    assert made.prompt.tokens == (2, 3)
    assert [rollout.version_spans for rollout in made.rollouts] == [((0, 2), (1, 1)), (), (), ()]
    assert [rollout.policy_version for rollout in made.rollouts] == [0, 2, 0, 0]
    assert [rollout.num_turns for rollout in made.rollouts] == [2, 1, 1, 1]
    assert [rollout.branches for rollout in made.rollouts] == [3, 3, 3, 1]


def test_an_episode_of_forced_turns_alone_has_a_reward_and_no_tokens() -> None:
    made = group_of((tree(forced([2, 3], [4])), "x"), (tree(turn([2, 3], [5])), "y"), rewards=({"a": 1.0}, {"a": 0.0}))
    assert [rollout.tokens.tolist() for rollout in made.rollouts] == [[], [5]]
    assert [rollout.reward_parts for rollout in made.rollouts] == [{"a": 1.0}, {"a": 0.0}]


class Digits:
    """A reward that counts its calls."""

    def __init__(self):
        self.seen = []

    def score(self, prompts, responses):
        self.seen += responses
        return [{"answer": float(text)} for text in responses]

    def close(self):
        pass


def test_an_episode_is_scored_once_and_weighs_once() -> None:
    reward = Digits()
    (made,) = with_advantages(score(reward, [group()]), "group_centered")
    assert reward.seen == ["3", "4"]
    assert [rollout.reward for rollout in made.rollouts] == [3.0, 3.0, 3.0, 4.0]
    assert [rollout.advantage for rollout in made.rollouts] == [-0.5, -0.5, -0.5, 0.5]
    microbatch = make_microbatch([(made.prompt.tokens, rollout) for rollout in made.rollouts])
    assert microbatch.advantages.tolist() == pytest.approx([-0.5 / 3] * 3 + [0.5])
    assert reward_metrics([made], policy_version=2)["reward/mean"] == 3.5
    answers = Answers.from_group(made, tokenizer())
    assert [answer.turns for answer in answers.answers] == [4, 1]


def test_a_reward_of_the_agent_is_kept() -> None:
    reward = Digits()
    (made,) = score(reward, [group_of((forked(), "3"), ([], "4"), rewards=({"agent": 0.25}, {}))])
    assert reward.seen == ["4"]
    assert [rollout.reward for rollout in made.rollouts] == [0.25, 0.25, 0.25, 4.0]


def test_checkpoints_keep_the_branches(tmp_path) -> None:
    write_batches(tmp_path / "batches.npz", [[group()]])
    ((again,),) = read_batches(tmp_path / "batches.npz")
    assert again.rollouts == group().rollouts
    assert again.prompt == group().prompt
    assert [len(rollouts) for rollouts in again.episodes] == [3, 1]
