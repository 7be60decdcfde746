"""Servers behind a router, and external servers."""

import asyncio
import os
import signal

import psutil
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import NeedsWeights
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.servers import pool as server_pool
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


def test_a_router_with_two_servers(start, folders):
    engine = start(2, router={"policy": "round_robin"}, health_seconds=6.0)
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


def test_a_killed_router_is_restarted(start, folders):
    engine = start(1, router={}, health_seconds=6.0, max_restarts=2)
    (server,) = engine.pool.servers
    router = engine._router._process
    # killed during generation: its requests are sent again, and each response counts once
    in_the_middle(engine, server, lambda: os.kill(router.pid, signal.SIGKILL))
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {0})
    check_log_probs(folders["dense"], groups)
    assert urls_of(engine._router) == {server.client.url}
    # killed while idle
    os.kill(router.pid, signal.SIGKILL)
    until(lambda: router.has_ended, 10)
    engine.load_weights(weights(folders["dense"], 1.3), 1)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=1)
    check(groups, {1})
    # killed more than `max_restarts` times
    os.kill(router.pid, signal.SIGKILL)
    until(lambda: router.has_ended, 10)
    with pytest.raises(UserError, match=r"the router of the rollout servers ended: .* was killed by SIGKILL"):
        engine.load_weights(weights(folders["dense"]), 2)


def server_of(engine):
    (server,) = engine.pool.servers
    return server


@pytest.mark.parametrize("transport", ["tensor", "distributed"])
def test_external_servers(engines, attach, folders, transport):
    engine = attach(transport=transport)
    engine.load_weights(weights(folders["dense"], 1.3), 7)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0)
    assert {rollout.policy_version for group in groups for rollout in group.rollouts} == {7}
    check_log_probs(folders["dense"], groups, 1.3)
    process = server_of(engines("dense")).process
    engine.close()
    assert psutil.pid_exists(process.pid), "an engine leaves servers that it did not start"
    if transport == "distributed":  # and they leave its process group
        assert '"POST /destroy_weights_update_group HTTP/1.1" 200' in process.log.read_text(errors="replace")


def test_a_trainer_killed_during_a_sync_leaves_external_servers_usable(engines, attach, folders):
    owner = engines("dense")
    for path, content in (("/pause_generation", {"mode": "retract"}), ("/begin_weight_update", {})):
        owner._run(server_of(owner).client.post(path, content, seconds=10))
    engine = attach()
    check_log_probs(folders["dense"], generate(engine, PROMPTS, SAMPLING, group_size=2, seed=0))


def test_weights_replaced_by_another_trainer_are_detected(engines, attach):
    """Covers answers whose weight version comes from no sync of this engine."""
    owner, engine = engines("dense"), attach()
    content = {"new_version": "theirs", "abort_all_requests": False}
    owner._run(server_of(owner).client.post("/update_weight_version", content, seconds=10))
    with pytest.raises(UserError, match=r"no server answers prompt .*theirs"):
        generate(engine, PROMPTS, SAMPLING, group_size=1, seed=0)


def test_a_malformed_url(folders):
    with pytest.raises(UserError, match="write a server's URL as http://"):
        sglang.engine(folders["dense"], urls=["10.0.0.1:30000"])


def test_waiting_for_a_lost_external_server_is_bounded(start, folders, monkeypatch):
    owner = start()
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", owner.key)
    engine = sglang.engine(folders["dense"], urls=[server_of(owner).client.url], health_seconds=3.0)
    engine.load_weights(weights(folders["dense"]), 1)
    monkeypatch.setattr(server_pool, "_START_SECONDS", 3.0)
    os.kill(server_of(owner).process.pid, signal.SIGKILL)
    with pytest.raises((UserError, NeedsWeights)) as raised:
        generate(engine, PROMPTS, SAMPLING, group_size=1, seed=0)
    assert "0 of 1 rollout servers are left, and 1 are needed" in str(raised.value)
    engine.close()
