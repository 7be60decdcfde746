"""Rollouts of several turns: real servers, real interpreters."""

import contextlib
from dataclasses import replace

import pytest

from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.environment.codeact import CodeAct, CodeActEpisode
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.rollout.environments import EnvironmentEpisodes
from megatron_sspo.types import Sampling
from packages.sandbox.tests.conftest import LIMITS, processes_of
from sspo_sandbox import Sandbox
from tests.policy.tiny_policy import TEMPERATURE
from tests.sglang.served import generate, until
from tests.sglang.test_engine import PROMPTS, choices, largest_difference, policies  # noqa: F401

SAMPLING = Sampling(max_tokens=100, temperature=TEMPERATURE, stop=("w1",))  # about one word in nine
GROUP = 4


class Counts(CodeActEpisode):
    """An episode that runs a fixed cell for each turn, because the tiny models do not write Python."""

    code = "n = len({!r}.split()); print(*['w5'] * (1 + n % 5))"

    def observe(self, response):
        with self._environment.working():
            return self.turn(response)

    def turn(self, response):
        return super().observe(f"<execute> {self.code.format(response)} </execute>")

    def close(self):
        with self._environment.working():
            super().close()


class Counting(CodeAct):
    episode = Counts
    num_working = 0

    @contextlib.contextmanager
    def working(self):
        with self._lock:
            self.num_working += 1
        try:
            yield
        finally:
            with self._lock:
                self.num_working -= 1

    def open(self, prompt):
        self.count("episodes")
        return self.episode(self)


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox(replace(LIMITS, wall_seconds=60.0, cpu_seconds=60))
    yield made
    made.close()


@pytest.fixture
def acting(sandbox):
    yield Counting(sandbox, concurrency=2, max_turns=4, max_characters=60, max_episodes=10)
    assert processes_of(sandbox) == []


def check(groups, folder):
    """Checks that turns alternate with the cells' output, and that no rollout lost or duplicated a token."""
    tokenizer = load_tokenizer(folder)
    template = TurnTemplate(tokenizer)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert max(rollout.num_turns for rollout in rollouts) >= 3
    for rollout in rollouts:
        assert len(rollout.rollout_log_probs) == len(rollout.tokens) <= SAMPLING.max_tokens
        begin = 0
        for first, beyond in rollout.observed:
            turn = rollout.tokens[begin:first]
            kept = [token for token in turn if token not in (tokenizer.pad_token_id, tokenizer.eos_token_id)]
            num_words = len(tokenizer.decode(kept).split())
            printed = " ".join(["w5"] * (1 + num_words % 5))
            assert tuple(rollout.tokens[first:beyond]) == template.observation_tokens(turn, f"Observation:\n{printed}")
            begin = beyond
        sampled = sum(count for _, count in rollout.version_spans) or rollout.num_response_tokens
        assert sampled == rollout.num_response_tokens == sum(rollout.response_mask())
    return rollouts


@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_log_probs_and_routes_of_all_turns_are_the_trainers(engines, policies, folders, acting, kind):  # noqa: F811
    engine, policy = engines(kind), policies(kind)
    engine.load_weights(policy.weights(), 0)
    short = replace(SAMPLING, max_tokens=52)  # a microbatch of this policy has 64
    groups = generate(engine, PROMPTS, short, group_size=GROUP, seed=0, environment=EnvironmentEpisodes(acting))
    rollouts = check(groups, folders[kind])
    assert all(len(rollout.tokens) <= 52 for rollout in rollouts)
    assert largest_difference(policy, groups) < 1e-4
    assert all(x < 0 for r in rollouts for x, own in zip(r.rollout_log_probs, r.response_mask(), strict=True) if own)
    assert acting.metrics()["cells_per_episode"] > 1
    if kind == "moe":
        bare = [replace(g, rollouts=[replace(r, routes=None) for r in g.rollouts]) for g in groups]
        own = [r for group in policy.old_log_probs(bare) for r in group.rollouts]
        for rollout, mine in zip(rollouts, own, strict=True):
            assert len(choices(rollout.routes)) == len(choices(mine.routes)) - 1
            assert choices(rollout.routes) == choices(mine.routes)[:-1]


class Endless(Counts):
    code = "while True: pass  # {!r}"


def test_a_cancelled_generation_leaves_no_interpreter(attach, acting, sandbox):
    engine = attach()
    acting.episode = Endless
    generation = engine.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0, environment=EnvironmentEpisodes(acting))
    until(lambda: processes_of(sandbox), 60)
    generation.cancel()
    until(lambda: generation.is_done, 20)
    until(lambda: not acting.num_working and not processes_of(sandbox), 20)
