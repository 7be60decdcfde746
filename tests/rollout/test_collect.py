"""The rollouts of one cycle, with a scripted engine."""

import math
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.advantages import with_advantages
from megatron_sspo.rollout.collect import collect, start_generation
from megatron_sspo.rollout.engine import BatchedGeneration, NeedsWeights
from megatron_sspo.rollout.metrics import plugin_metrics
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling
from tests.responses import response


class ScriptedEngine:
    """An engine with the weights of version 5, whose responses come from a function of the prompt and the index."""

    replicated = True

    def __init__(self, script) -> None:
        self._script = script

    def start(self, given, sampling, *, group_size, seed, environment=None):
        return BatchedGeneration(self._batch(given, group_size))

    def _batch(self, given, group_size):
        yield [(index, self._group(prompt, group_size)) for index, prompt in enumerate(given)]

    def _group(self, prompt: Prompt, group_size: int) -> RolloutGroup:
        return RolloutGroup(
            prompt=prompt, rollouts=[self._rollout(self._script(prompt, index)) for index in range(group_size)]
        )

    def _rollout(self, text: str) -> Rollout:
        tokens = (*map(ord, text), 0)
        return response(tokens, rollout_log_probs=(-1.0,) * len(tokens), text=text, policy_version=5)


class Length:
    """A reward: the length of a response, or NaN if it has only question marks."""

    def score(self, prompts, responses):
        return [{"answer": math.nan if set(r) == {"?"} else float(len(r))} for r in responses]

    def close(self) -> None:
        pass


def no_sync():
    raise AssertionError("no engine has lost its weights")


def prompts(ids: str) -> list[Prompt]:
    return [Prompt(id=id, tokens=(ord(id),), answer="") for id in ids]


def scripted(script=lambda prompt, index: prompt.id * (index + 1)) -> ScriptedEngine:
    return ScriptedEngine(script)


def collected(ids: str, engine=None, group_size: int = 2):
    pending = start_generation(engine or scripted(), prompts(ids), Sampling(), group_size=group_size, seed=0)
    return collect(pending, Length(), sync=no_sync)


def texts(groups) -> list[list[str]]:
    return [[rollout.text for rollout in group.rollouts] for group in groups]


def test_groups_are_in_the_order_of_the_prompts_with_rewards() -> None:
    groups = collected("cab")
    assert [group.prompt.id for group in groups] == ["c", "a", "b"]
    assert texts(groups) == [["c", "cc"], ["a", "aa"], ["b", "bb"]]
    assert [r.reward for r in groups[0].rollouts] == [1.0, 2.0]


def test_a_nan_reward_is_an_error_that_names_the_prompt() -> None:
    with pytest.raises(UserError, match="nan} for a response to prompt 'b'"):
        collected("abc", scripted(lambda prompt, index: "?" if prompt.id == "b" and index else "x"))


@pytest.mark.parametrize(("prefix", "name"), [("reward/", "mean"), ("", "update")])
def test_a_plug_in_cannot_replace_a_metric(prefix, name) -> None:
    class Counting:
        def metrics(self):
            return {name: 1.0}

    parts = [(Length(), "the engine", ""), (Counting(), "the reward", prefix)]
    assert plugin_metrics({"update": 1, "reward/mean": 0.5}, [(Counting(), "the reward", "x/")]) == {f"x/{name}": 1.0}
    with pytest.raises(UserError, match=f"^the reward's metrics returned '{name}', and the run has a number"):
        plugin_metrics({"update": 1, "reward/mean": 0.5}, parts)


def share(rank: int, world_size: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world_size)
    for replicated, ids in ((True, "abcab"), (True, "a"), (True, ""), (False, "abcab")):
        engine = scripted()
        engine.replicated = replicated
        if not replicated and rank:
            engine.start = None  # type: ignore[assignment]  # only rank 0 may start a generation on servers
        groups = collected(ids, engine)
        assert [group.prompt.id for group in groups] == list(ids)
        assert [[r.reward for r in group.rollouts] for group in groups] == [[1.0, 2.0]] * len(ids)
        assert [[len(r.tokens) for r in group.rollouts] for group in groups] == [[2, 3]] * len(ids)
        if rank == 0:
            assert texts(groups) == [[id, id * 2] for id in ids], texts(groups)
        assert all(r.is_outline == (rank > 0) for group in groups for r in group.rollouts)
        for estimator in ("sampled_tokens", "first_tokens"):  # they read tokens, which rank 0 alone has
            of_rank = with_advantages(groups, f"{Path(__file__).with_name('test_advantages.py')}:{estimator}")
            found: list = [None, None]
            dist.all_gather_object(found, [[r.advantage for r in group.rollouts] for group in of_rank])
            assert found[0] == found[1]
            is_by_token = [r.token_advantages is not None for group in of_rank for r in group.rollouts]
            assert is_by_token == [estimator == "sampled_tokens"] * len(is_by_token)
            assert [[len(r.tokens) for r in group.rollouts] for group in of_rank] == [[2, 3]] * len(ids)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_split_the_prompts_and_rank_0_has_the_groups(tmp_path) -> None:
    mp.spawn(share, (2, str(tmp_path / "store")), nprocs=2)  # type: ignore[attr-defined]


def test_an_engine_without_weights_is_synced_and_continues():
    class Forgetful:
        replicated = False
        has_weights, calls = False, 0

        def start(self, given, sampling, *, group_size, seed, environment):
            self.generation = scripted().start(given, sampling, group_size=group_size, seed=seed)
            return self

        def wait(self):
            self.calls += 1
            if not self.has_weights:
                raise NeedsWeights
            return self.generation.wait()

    engine = Forgetful()

    def sync():
        engine.has_weights = engine.calls == 2  # a second sync may be necessary

    found = collect(start_generation(engine, prompts("ab"), Sampling(), group_size=2, seed=0), Length(), sync=sync)
    assert engine.calls == 4 and [group.prompt.id for group in found] == ["a", "b"]
