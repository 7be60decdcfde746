"""Cycles that run ahead, groups that are replaced, and groups that are cancelled, with an engine like SGLang's."""

from dataclasses import dataclass, field, replace

import pytest

from megatron_sspo.data.row import Row
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.reward.overlong import Overlong
from megatron_sspo.rollout.cycles import RolloutCycles
from megatron_sspo.run import Model, Prompts, Rollouts, Run, check
from megatron_sspo.types import RolloutGroup
from tests.responses import response
from tests.rollout.test_collect import Length


class Words:
    def __call__(self, texts, **_):
        return {"input_ids": [[ord(c) for c in text] for text in texts]}


@dataclass
class Servers:
    """An engine whose responses use the weights at the time of `start`, and whose `wait` returns `at_once` groups.

    The i-th response to prompt n is `script(n, i)` times "x". The groups of slow prompts are returned last.
    """

    script: object = lambda number, index: index + 1
    slow: frozenset = frozenset()
    at_once: int = 2
    replicated: bool = False
    version: int = 0
    begun: list = field(default_factory=list)
    seeds: list = field(default_factory=list)
    events: list = field(default_factory=list)

    def start(self, prompts, sampling, *, group_size, seed, environment):
        groups = []
        self.seeds.append(seed)
        for place, prompt in enumerate(prompts):
            self.begun.append(prompt.id)
            texts = ["x" * self.script(int(prompt.id), index) for index in range(group_size)]
            rollouts = [response((1,) * len(text), text=text, policy_version=self.version) for text in texts]
            groups.append((place, RolloutGroup(prompt=prompt, rollouts=rollouts)))
        groups.sort(key=lambda group: group[1].prompt.id in self.slow)
        return Started(self, groups)

    def release_memory(self):
        self.events.append("release_memory")


@dataclass
class Started:
    engine: Servers
    groups: list

    def wait(self):
        some, self.groups = self.groups[: self.engine.at_once], self.groups[self.engine.at_once :]
        return some

    def cancel(self):
        if self.groups:
            self.engine.events.append(f"{len(self.groups)} given up")
        self.groups = []


def make_run(num_updates=8, mu=2, **rollouts) -> Run:
    rollouts = Rollouts(prompts_per_update=2, group_size=3, **rollouts)
    return Run(
        name="test",
        model=Model(path="x"),
        prompts=Prompts(source="x"),
        num_updates=num_updates,
        updates_per_sync=mu,
        rollouts=rollouts,
    )


def stream() -> PromptStream:
    rows = [Row(id=str(number), question=f"{number}", answer="") for number in range(100)]
    return PromptStream(rows, Words(), template="{question}", max_tokens=10, seed=0, shuffle=False)  # type: ignore


def no_sync():
    raise AssertionError


def cycles(run: Run, engine: Servers, prompts: PromptStream | None = None) -> RolloutCycles:
    return RolloutCycles(check(run), engine, Length(), prompts or stream(), sync=no_sync)  # type: ignore[arg-type]


def ids(groups):
    return [int(group.prompt.id) for group in groups]


@pytest.mark.parametrize(("max_staleness", "ahead"), [(0, 0), (2, 1), (3, 1), (4, 2), (100, 3)])
def test_generation_runs_ahead_up_to_max_staleness(max_staleness, ahead):
    run, engine = make_run(max_staleness=max_staleness), Servers()
    source = cycles(run, engine)
    for cycle in range(4):
        engine.version = update = 2 * cycle
        groups = source.next(update)
        assert ids(groups) == list(range(4 * cycle, 4 * cycle + 4)), "cycles come in the prompts' order"
        versions = {rollout.policy_version for group in groups for rollout in group.rollouts}
        assert versions == {max(0, update - 2 * ahead)}
        assert update - min(versions) <= max_staleness
        assert len(engine.begun) == min(16, 4 * (cycle + 1 + ahead)), "nothing is begun for updates that never come"
    assert engine.events.count("release_memory") == (4 if ahead == 0 else 1), "servers that generate keep their memory"


def test_staleness_of_less_than_a_cycle_is_an_error():
    with pytest.raises(
        UserError, match=r"max_staleness is 1 and updates_per_sync 2: .* set it to 0 or to that at least"
    ):
        check(make_run(max_staleness=1))
    check(make_run(max_staleness=1, mu=1))


@pytest.mark.parametrize(
    ("option", "replicated", "message"),
    [
        ({"max_staleness": 2}, True, "generates inside the trainer"),
        ({"oversampling": 1.5}, True, "generates inside the trainer"),
        ({"max_staleness": 2, "options": {"release_memory": True}}, False, "release_memory releases their memory"),
    ],
)
def test_engines_that_cannot_run_ahead(option, replicated, message):
    with pytest.raises(UserError, match=message):
        cycles(make_run(**option), Servers(replicated=replicated))


def even_have_no_variance(number, index):
    return 2 if number % 2 == 0 else index + 1


@pytest.mark.parametrize(
    ("refills", "expected"),
    [
        (0, [0, 1, 2, 3]),
        (1, [1, 3, 5, 0]),  # of the two groups drawn for the two missing ones, one has equal rewards; 0 takes its place
        (2, [1, 3, 5, 0]),
        (5, [1, 3, 5, 7]),
    ],
)
def test_groups_without_reward_variance_are_replaced(refills, expected):
    source = cycles(make_run(refills=refills), Servers(even_have_no_variance))
    assert ids(source.next(0)) == expected
    replaced = {0: 0, 1: 2, 2: 3, 5: 4}[refills]  # the mean of every group is 2
    sampled = {"reward/mean_sampled": 2.0, "rollout/groups_sampled": 4.0 + replaced} if refills else {}
    assert source.metrics() == sampled and source.metrics() == {}


def even_are_better(number, index):
    return 5 if number % 2 == 0 else index + 1


def test_the_mean_of_all_groups_that_were_sampled():
    source = cycles(make_run(refills=1), Servers(even_are_better))
    assert ids(source.next(0)) == [1, 3, 5, 0]
    assert source.metrics() == {"reward/mean_sampled": (5 + 2 + 5 + 2 + 5 + 2) / 6, "rollout/groups_sampled": 6.0}


def rewards_by_length(number, index):
    return number % 5 + 1 + index


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(0.0, 1.0, [0, 1, 2, 3]), (0.25, 0.55, [1, 2, 3, 6]), (0.9, 1.0, [0, 1, 2, 3])]
)
def test_groups_by_their_pass_rate(least, most, expected):
    run = make_run(refills=5, min_pass_rate=least, max_pass_rate=most)

    class Tenths(Length):
        def score(self, prompts, responses):
            return [{"answer": len(response) / 10} for response in responses]

    source = RolloutCycles(
        run, Servers(rewards_by_length), Tenths(), cycles(run, Servers())._prompts, sync=lambda: None
    )
    assert ids(source.next(0)) == expected


def test_the_slowest_are_cancelled_and_come_first_in_the_next_cycle():
    engine = Servers(slow=frozenset({"0", "3"}))
    source = cycles(make_run(oversampling=1.5), engine)
    assert ids(source.next(0)) == [1, 2, 4, 5]
    assert engine.events[0] == "2 given up"
    engine.slow = frozenset()
    assert ids(source.next(2)) == [0, 3, 6, 7]
    assert engine.begun[6:] == ["0", "3", "6", "7", "8", "9"], "6 prompts again, and none is lost"


def test_groups_that_finish_beyond_those_that_are_needed_are_not_lost():
    engine = Servers(at_once=100)  # as where the trainer is slower than the servers
    source = cycles(make_run(oversampling=1.25), engine)
    assert ids(source.next(0)) == [0, 1, 2, 3]
    assert ids(source.next(2)) == [4, 5, 6, 7] and engine.begun[5:] == ["4", "5", "6", "7", "8"]


def test_a_prompt_that_is_drawn_again_in_a_cycle_has_another_seed():
    engine = Servers(lambda number, index: 1)
    source = cycles(make_run(refills=2), engine)
    source.next(0)
    source.next(2)
    assert len(set(engine.seeds)) == 6


def test_groups_are_cancelled_only_when_enough_have_reward_variance():
    engine = Servers(even_have_no_variance, slow=frozenset({"7"}))
    source = cycles(make_run(oversampling=2.0, refills=1), engine)
    assert ids(source.next(0)) == [1, 3, 5, 7] and not engine.events.count("2 given up")


def test_a_resumed_run_restarts_pending_prompts():
    engine, prompts = Servers(slow=frozenset({"1", "9"})), stream()
    source = cycles(make_run(max_staleness=2, oversampling=1.25), engine, prompts)
    assert ids(source.next(0)) == [0, 2, 3, 4]
    saved, position = source.state(), prompts.state()
    engine.slow = frozenset()
    expected = [ids(source.next(2)), ids(source.next(4))]

    restored = stream()
    restored.restore(position)
    again = cycles(make_run(max_staleness=2, oversampling=1.25), Servers(), restored)
    again.restore(saved)
    assert [ids(again.next(2)), ids(again.next(4))] == expected
    assert expected[1][0] == 1, "what was given up is begun again"


def test_a_run_that_is_resumed_with_cycles_of_another_size_loses_no_prompt():
    source = cycles(make_run(max_staleness=2), Servers())
    assert ids(source.next(0)) == [0, 1, 2, 3]
    restored = stream()
    restored.restore(source._prompts.state())
    again = cycles(make_run(mu=3), Servers(), restored)
    again.restore(source.state())
    assert ids(again.next(2)) == [4, 5, 6, 7, 8, 9]


def test_responses_near_the_limit_are_penalized():
    overlong = Overlong(max_tokens=100, buffer=20, penalty=0.5)
    assert [overlong(n) for n in (1, 80, 85, 90, 100, 120)] == [0, 0, -0.125, -0.25, -0.5, -0.5]
    run = make_run(overlong_buffer=2, overlong_penalty=1.0)
    run = replace(run, rollouts=replace(run.rollouts, sampling=replace(run.rollouts.sampling, max_tokens=3)))
    groups = cycles(run, Servers()).next(0)
    assert [r.reward for r in groups[0].rollouts] == [1.0, 1.5, 2.0]
    assert [r.reward_parts["overlong"] for r in groups[0].rollouts] == [0.0, -0.5, -1.0]
