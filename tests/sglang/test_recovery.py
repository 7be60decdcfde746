"""Servers that are killed or hang: the run continues, every response occurs once, and the server is restarted."""

import os
import signal
import threading
from dataclasses import replace

import psutil
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import NeedsWeights
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.servers import pool as server_pool
from tests.sglang.served import (
    GROUP,
    PROMPTS,
    SAMPLING,
    check,
    check_log_probs,
    generate,
    until,
    until_in_the_middle,
    weights,
)


def in_the_middle(engine, server, action):
    """Runs `action` in a thread as soon as a server is generating."""

    def wait():
        until_in_the_middle(engine, server)
        action()

    threading.Thread(target=wait).start()


def signal_all(server, number):
    """Sends a signal to the processes of a server, but not to the watcher that cleans up after them."""
    os.killpg(server.process.pid, number)


def num_up(engine):
    """Restarts failed servers, and returns the number of servers that are up."""
    engine._restart_failed()
    engine._run(engine.pool.check())
    return len(engine.pool.up())


@pytest.fixture(scope="module")
def two(folders, tmp_path_factory):
    """Builds an engine with two servers, which are restarted after every failure."""
    folder = tmp_path_factory.mktemp("run")
    engine = sglang.engine(
        folders["dense"],
        num_servers=2,
        run_folder=folder,
        health_seconds=6.0,
        max_restarts=20,
        bucket_bytes=20_000,
        verify_every=1,
    )
    yield engine
    engine.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_servers_fails_during_generation(two, folders, how):
    two.load_weights(weights(folders["dense"]), 0)
    first = two.pool.servers[0]
    pid, restarts = first.process.pid, first.num_restarts
    in_the_middle(two, first, lambda: signal_all(first, how))
    groups = generate(two, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {0})
    check_log_probs(folders["dense"], groups)
    until(lambda: num_up(two) == 2, 120)  # it gets weights at the next sync
    assert first.num_restarts == restarts + 1 and first.process.pid != pid
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    two.load_weights(weights(folders["dense"], 1.02), 1)
    assert [server.version for server in two.pool.servers] == [1, 1]
    groups = generate(two, PROMPTS, SAMPLING, group_size=GROUP, seed=1)
    check(groups, {1})
    check_log_probs(folders["dense"], groups, 1.02)


def test_one_of_two_servers_is_killed_during_a_sync(two, folders):
    until(lambda: num_up(two) == 2, 120)
    two.load_weights(weights(folders["dense"]), 0)
    first, second = two.pool.servers
    two.load_weights(killing(first, weights(folders["dense"], 1.02)), 1)
    assert (first.version, second.version) == (None, 1)
    groups = generate(two, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {1})
    check_log_probs(folders["dense"], groups, 1.02)


def killing(server, stream):
    """Yields a stream, and kills a server in the middle."""
    for number, pair in enumerate(stream):
        if number == 10:
            signal_all(server, signal.SIGKILL)
        yield pair


def test_one_of_two_servers_is_killed_during_a_broadcast(two, folders, monkeypatch):
    """Checks the other server, which misses some weights: it serves nothing before a sync, and is not restarted."""
    options = replace(two._options, transport="distributed")
    monkeypatch.setattr(two, "_transport", sglang._build_transport(options, folders["dense"]))
    until(lambda: num_up(two) == 2, 120)
    two.load_weights(weights(folders["dense"]), 0)
    first, second = two.pool.servers
    pid = second.process.pid
    # so many that some are unfinished when the broadcast ends, on a fast machine too
    generation = two.start(PROMPTS, SAMPLING, group_size=3 * GROUP, seed=0)
    until_in_the_middle(two, second)
    two.load_weights(killing(first, weights(folders["dense"], 1.3)), 1)
    assert two.pool.ready() == [] and second.is_up
    found = {}
    with pytest.raises(NeedsWeights):
        finish(generation, found)
    two.load_weights(weights(folders["dense"], 1.3), 1)
    assert second.version == 1 and second.process.pid == pid
    check(finish(generation, found), {0, 1}, group_size=3 * GROUP)
    again = generate(two, PROMPTS, SAMPLING, group_size=2, seed=0)
    check(again, {1}, group_size=2)
    check_log_probs(folders["dense"], again, 1.3)


def finish(generation, found):
    """Adds the groups of a generation to those that were found before, and returns all."""
    while groups := generation.wait():
        assert not found.keys() & dict(groups).keys()
        found.update(groups)
    return [found[number] for number in range(len(PROMPTS))]


def test_the_only_server_is_killed_again_and_again(start, folders, monkeypatch):
    """Restarts it once; after the second time, its owner and a trainer to which it is external both end."""
    engine = start(1, max_restarts=1)
    (server,) = engine.pool.servers
    in_the_middle(engine, server, lambda: signal_all(server, signal.SIGKILL))
    generation = engine.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    found = {}
    with pytest.raises(NeedsWeights):
        finish(generation, found)
    assert len(found) < len(PROMPTS)
    engine.load_weights(weights(folders["dense"]), 0)
    groups = finish(generation, found)
    check(groups, {0})
    check_log_probs(folders["dense"], groups)

    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", engine.key)
    other = sglang.engine(folders["dense"], urls=[server.client.url], health_seconds=3.0)
    other.load_weights(weights(folders["dense"]), 1)
    monkeypatch.setattr(server_pool, "_START_SECONDS", 3.0)  # for which an external server is waited for
    signal_all(server, signal.SIGKILL)
    with pytest.raises((UserError, NeedsWeights), match="0 of 1 rollout servers are left, and 1 are needed"):
        generate(other, PROMPTS, SAMPLING, group_size=1, seed=0)
    other.close()
    with pytest.raises(UserError, match=r"0 of 1 rollout servers are left, and 1 are needed: .* was killed by SIGKILL"):
        generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
