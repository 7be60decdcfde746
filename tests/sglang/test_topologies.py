"""Servers behind a router, and external servers."""

import asyncio
import os
import signal

import psutil
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.servers.client import Client
from tests.sglang.served import GROUP, PROMPTS, SAMPLING, check, check_log_probs, generate, until, weights
from tests.sglang.test_recovery import in_the_middle, num_up, signal_all


def num_answers(server):
    return server.process.log.read_text(errors="replace").count('"POST /generate HTTP/1.1" 200')


def urls_of(router):
    async def ask():
        client = Client(router.client.url, router._key)
        try:
            return {worker["url"] for worker in (await client.get("/workers", seconds=10.0))["workers"]}
        finally:
            await client.close()

    return asyncio.run(ask())


def test_a_router_and_two_servers_that_are_killed(start, folders):
    engine = start(2, router={"policy": "round_robin"}, health_seconds=6.0, max_restarts=2)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {0})
    check_log_probs(folders["dense"], groups)
    first, second = engine.pool.servers
    assert num_answers(first) > 20 and num_answers(second) > 20
    # one server is killed during generation: the other generates everything, and both serve after the next sync
    in_the_middle(engine, first, lambda: signal_all(first, signal.SIGKILL))
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=1)
    until(lambda: urls_of(engine._router) == {second.client.url}, 20)
    check(groups, {0})
    check_log_probs(folders["dense"], groups)
    until(lambda: num_up(engine) == 2, 120)
    engine.load_weights(weights(folders["dense"], 1.3), 1)
    before = num_answers(first)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=2)
    check(groups, {1})
    check_log_probs(folders["dense"], groups, 1.3)
    assert num_answers(first) > before + 20, "it was started again, and the router knows it"
    # a server that fails while the router registers it is not waited for
    looks = iter([{"http://127.0.0.1:1", second.client.url}] * 5)
    engine._run(engine._router.set_servers(lambda: next(looks, {second.client.url})))
    assert urls_of(engine._router) == {second.client.url}

    # the router is killed during generation: its requests are sent again, and each response counts once
    router = engine._router._process
    in_the_middle(engine, second, lambda: os.kill(router.pid, signal.SIGKILL))
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=3)
    check(groups, {1})
    # and while weights are sent
    engine.load_weights(killing(router, weights(folders["dense"])), 2)
    check(generate(engine, PROMPTS, SAMPLING, group_size=2, seed=1), {2}, group_size=2)
    # and while it is idle, more often than `max_restarts`
    kill(router)
    with pytest.raises(UserError, match=r"the router of the rollout servers ended: .* was killed by SIGKILL"):
        engine.load_weights(weights(folders["dense"]), 3)


def killing(process, stream):
    """Yields a stream, and kills a process at its beginning."""
    kill(process)
    yield from stream


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process.has_ended, 10)


def server_of(engine):
    (server,) = engine.pool.servers
    return server


def test_external_servers(engines, attach, folders):
    engine = attach(transport="distributed")
    engine.load_weights(weights(folders["dense"], 1.3), 7)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0)
    assert {rollout.policy_version for group in groups for rollout in group.rollouts} == {7}
    check_log_probs(folders["dense"], groups, 1.3)
    process = server_of(engines("dense")).process
    engine.close()
    assert psutil.pid_exists(process.pid), "an engine leaves servers that it did not start, and they its process group"
    assert '"POST /destroy_weights_update_group HTTP/1.1" 200' in process.log.read_text(errors="replace")


def test_a_trainer_killed_during_a_sync_leaves_external_servers_usable(engines, attach, folders):
    owner = engines("dense")
    for path, content in (("/pause_generation", {"mode": "retract"}), ("/begin_weight_update", {})):
        owner._run(server_of(owner).client.post(path, content, seconds=10))
    engine = attach()
    check_log_probs(folders["dense"], generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0))
