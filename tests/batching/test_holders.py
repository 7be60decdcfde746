"""Holders of a batch: which rank has what, in four processes."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from megatron_sspo.batching.holders import Holders, outline, with_field
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, rollouts_of
from tests.responses import response

PLAN = [[[2], [0]], [[3, 1]]]  # of two data-parallel ranks


def rollout(number: int, **more) -> Rollout:
    length = 3 * number  # the first one is empty
    return response(
        range(length),
        rollout_log_probs=np.arange(length) - 100.0 * number,
        text=f"text {number}",
        reward_parts={"answer": float(number)},
        advantage=number / 7,
        routes=[number] * (2 * length),
        observed=((1, 2),) if number == 2 else (),
        **more,
    )


def batch() -> list[RolloutGroup]:
    prompts = [Prompt(id=id, tokens=(1, 2), answer="") for id in "ab"]
    return [
        RolloutGroup(prompt=prompt, rollouts=[rollout(2 * n), rollout(2 * n + 1)]) for n, prompt in enumerate(prompts)
    ]


def test_an_outline_has_the_numbers_and_takes_no_memory():
    long = replace(rollout(1), tokens=range(10**6), rollout_log_probs=np.zeros(10**6), routes=[1] * 10**6)
    for found in (long.outline(old_log_probs=10**6), pickle.loads(pickle.dumps(long.outline(old_log_probs=10**6)))):
        assert found.is_outline and found.text == "" and found.advantage == 1 / 7 and found.reward == 1.0
        arrays = [found.tokens, found.rollout_log_probs, found.old_log_probs, found.routes]
        assert [(len(array), array.strides, array.flags.writeable) for array in arrays] == [(10**6, (0,), False)] * 4
        assert found.tokens[5] == -1 and np.isnan(found.old_log_probs[5])
        assert found.reference_log_probs is None and found.num_response_tokens == 10**6
    assert len(pickle.dumps(long.outline())) < 1000


def test_a_rollout_without_a_value_becomes_an_outline():
    found = rollouts_of(with_field(batch(), "old_log_probs", {1: np.ones(3)}, [0, 3, 6, 9]))
    assert [r.is_outline for r in found] == [True, False, True, True]
    assert found[1] == rollout(1, old_log_probs=[1, 1, 1])
    assert [len(r.old_log_probs) for r in found] == [0, 3, 6, 9] and np.isnan(found[3].old_log_probs).all()


def check(rank: int, path: str) -> None:
    """Runs on four ranks: two data-parallel ranks of two each; the second of the two has the results."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    data_rank = rank // 2
    holders = Holders.agree(rank, data_rank, is_source=rank % 2 == 1)
    assert holders.ranks == [[0, 1], [2, 3]] and holders.sources == [1, 3]
    mine = {number for part in PLAN[data_rank] for number in part}

    shared = rollouts_of(holders.scatter(batch() if rank == 0 else outline(batch()), PLAN))
    whole = [replace(r, text="") for r in rollouts_of(batch())]
    for number, found in enumerate(shared):
        if rank == 0:
            assert found == rollout(number)
        else:
            assert found.is_outline == (number not in mine)
            assert found == whole[number] or found.is_outline
        assert len(found.tokens) == 3 * number and found.advantage == number / 7

    values = {number: np.full(3, 10 * rank + number) for number in mine}
    spread = holders.spread(values if rank % 2 else {number: np.zeros(1) for number in mine})
    expected = {number: (10 if number in (0, 2) else 30) + number for number in (range(4) if rank == 0 else mine)}
    assert {number: found.tolist() for number, found in spread.items()} == {n: [v] * 3 for n, v in expected.items()}

    assert holders.gather(f"of {rank}") == [f"of {n}" for n in (range(4) if rank == 0 else holders.ranks[data_rank])]
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_get_what_they_compute_and_rank_0_has_all(tmp_path):
    mp.spawn(check, (str(tmp_path / "store"),), nprocs=4)  # type: ignore[attr-defined]
