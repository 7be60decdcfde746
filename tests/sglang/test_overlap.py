"""Replacement of weights during generation, and cancelled responses."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.requests import generation as sglang_generation
from megatron_sspo.rollout.requests import groups as sglang_groups
from tests.policy.launcher import launch
from tests.policy.layouts import LAYOUTS
from tests.sglang import senders
from tests.sglang.served import (
    GROUP,
    PROMPTS,
    SAMPLING,
    check,
    check_log_probs,
    check_spans,
    generate,
    num_running,
    scaled,
    until,
    until_in_the_middle,
    weights,
)

FACTORS = [1.0, 1.3, 0.8]  # scales of weight versions 0, 1 and 2, far apart


def finished(generation):
    found = {}
    while groups := generation.wait():
        assert not found.keys() & dict(groups).keys()
        found.update(groups)
    return [found[number] for number in range(len(found))]


@pytest.mark.parametrize(
    ("pause", "transport"),
    [
        ("retract", "tensor"),
        ("retract", "disk"),
        ("retract", "distributed"),
        ("abort", "tensor"),
        ("in_place", "tensor"),
    ],
)
def test_responses_continue_with_the_new_weights(attach, start, folders, pause, transport):
    """Checks that the log-prob of every token is that of the weights in the rollout's spans."""
    if pause == "in_place":
        engine = start(pause=pause, server={"disable_radix_cache": True}, transport=transport)
    else:
        engine = attach(pause=pause, transport=transport)
    generation = engine.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    for version in (1, 2):
        until_in_the_middle(engine)
        engine.load_weights(weights(folders["dense"], FACTORS[version]), version)
    groups = finished(generation)
    check(groups, {0, 1, 2})
    # "in_place" keeps keys and values of old weights
    models = [scaled(folders["dense"], factor) for factor in FACTORS]
    assert check_spans(models, groups, only_first=pause == "in_place") > 10
    # nothing of the old weights is left in the cache
    again = generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0)
    check_log_probs(folders["dense"], again, FACTORS[2])
    assert engine.metrics()["sync/gigabytes"] > 0


def test_cancelled_requests_are_aborted(attach):
    engine = attach()
    generation = engine.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    later = engine.start(PROMPTS[:1], SAMPLING, group_size=2, seed=0)
    until(lambda: num_running(engine) > 20, 30)
    generation.cancel()
    assert generation.wait() == []
    assert len(finished(later)) == 1, "the other generation does not notice"
    until(lambda: not num_running(engine), 5)
    assert engine.metrics()["rollout/seconds_idle"] > 0


def test_a_slow_response_is_aborted_and_continued(attach, folders, monkeypatch):
    """Checks that a timeout does not count as a failure, and that no tokens are lost.

    The timeout must be shorter than most responses and longer than the server needs for a token, so it is doubled
    until it suits the machine.
    """
    monkeypatch.setattr(sglang_generation, "_MAX_FAILURES", 1)
    handed_back = []
    abort = sglang_generation.Requests._abort
    monkeypatch.setattr(sglang_generation.Requests, "_abort", lambda *given: (handed_back.append(given), abort(*given)))
    seconds, groups = 0.2, None
    while groups is None:
        engine = attach(request_seconds=seconds)
        handed_back.clear()
        try:
            groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
        except UserError as error:
            assert f"sampled no token of any request in {seconds:g} s" in str(error)
            seconds *= 2
    check(groups, {0})
    check_log_probs(folders["dense"], groups)
    assert all(len(rollout.tokens) <= SAMPLING.max_tokens for group in groups for rollout in group.rollouts)
    assert len(handed_back) > len(PROMPTS) * GROUP / 2


def test_the_cache_is_flushed_despite_requests_of_other_clients(attach):
    """Covers requests of other clients during a flush, such as health checks, which generate a token."""
    engine = attach()
    (server,) = engine.pool.servers
    question = {"input_ids": [[5, 6]] * 64, "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
    answer = engine._submit(server.client._exchange("POST", "/generate", question, 60))
    until(lambda: num_running(engine), 30)
    session = engine._new_session()
    session.flush(has_retracted=False)
    assert not session.failures
    status, text = answer.result(60)
    assert status == 200, text


def test_memory_is_released_and_resumed(engines, attach, folders, monkeypatch):
    """Checks the steps of releasing memory; on a CPU SGLang releases none."""
    end = sglang_groups.cancel

    async def end_late(tasks):
        await asyncio.sleep(0.1)
        await end(tasks)

    monkeypatch.setattr(sglang_groups, "cancel", end_late)  # `release_memory` may follow the last group at once
    engine = attach(release_memory=True)
    generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0)
    engine.release_memory()
    with pytest.raises(AssertionError, match="call load_weights before start"):
        engine.start(PROMPTS, SAMPLING, group_size=2, seed=0)
    engine.load_weights(weights(folders["dense"], 1.3), 1)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {1})
    check_log_probs(folders["dense"], groups, 1.3)
    # an engine that ends does not leave an external server without its memory
    engine.release_memory()
    owner = engines("dense")
    client = owner.pool.servers[0].client
    assert not owner._run(client.is_healthy(seconds=3))
    engine.close()
    assert owner._run(client.is_healthy(seconds=30))


@pytest.mark.parametrize(("kind", "transport"), [("moe", "tensor"), ("dense", "distributed")])
def test_a_server_of_two_ranks(start, folders, kind, transport, tmp_path):
    """Checks that each rank holds its shard of the weights: checksums are compared rank by rank."""
    engine = start(kind=kind, server={"tp_size": 2}, transport=transport)
    sampling = replace(SAMPLING, max_tokens=40)
    groups = generate(engine, PROMPTS, sampling, group_size=2, seed=0)
    check_log_probs(folders[kind], groups)
    # four trainer processes send to the same server, each the weights of its pipeline stage and experts
    (server,) = engine.pool.servers
    layouts = {"moe PP2 EP2": 4, "moe TP2 SP PP2": 2} if kind == "moe" else {"dense TP2 PP2": 2}
    launch(Path(senders.__file__), 4, folders[kind], tmp_path, server.client.url, engine.key, 2, *layouts)
    found = json.loads((tmp_path / "senders.json").read_text())
    assert {name: metrics["senders"] for name, metrics in found.items()} == layouts
    engine.load_weights(weights(folders[kind]), 9)
    check_log_probs(folders[kind], generate(engine, PROMPTS, sampling, group_size=2, seed=0))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_eight_trainers_and_two_servers_of_two_ranks(start, folders, kind, tmp_path):
    """Checks all layouts of four processes with twice the data-parallel ranks, by checksums of every tensor."""
    engine = start(num_servers=2, kind=kind, server={"tp_size": 2}, transport="distributed")
    urls = ",".join(server.client.url for server in engine.pool.servers)
    layouts = [
        name
        for name, layout in LAYOUTS.items()
        if layout.kind == kind and layout.parallel.num_processes == 4 and layout.batch == "ragged"
    ]
    launch(Path(senders.__file__), 8, folders[kind], tmp_path, urls, engine.key, 2, *layouts, seconds=1500)
    found = json.loads((tmp_path / "senders.json").read_text())
    assert list(found) == layouts
    engine.load_weights(weights(folders[kind]), 9)
    check_log_probs(folders[kind], generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0))
