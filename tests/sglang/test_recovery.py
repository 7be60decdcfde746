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


def processes(server):
    """Returns the processes of a server, its main process first."""
    first = psutil.Process(server.process.pid)
    return [first, *first.children(recursive=True)]


def signal_all(server, number):
    for process in processes(server):
        os.kill(process.pid, number)


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


@pytest.fixture
def using(two, folders, monkeypatch):
    """Returns a function `using(...)` that changes the options of the two servers and waits until both are up."""

    def use(**changes):
        options = replace(two._options, **changes)
        monkeypatch.setattr(two, "_options", options)
        monkeypatch.setattr(two, "_transport", sglang._TRANSPORTS[options.transport](options, folders["dense"]))
        until(lambda: num_up(two) == 2, 120)

    return use


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


@pytest.mark.parametrize("transport", ["tensor", "disk"])
def test_one_of_two_servers_is_killed_during_a_sync(two, folders, using, transport):
    using(transport=transport)
    two.load_weights(weights(folders["dense"]), 0)
    first, second = two.pool.servers

    def stream():
        for number, pair in enumerate(weights(folders["dense"], 1.02)):
            if number == 10:
                signal_all(first, signal.SIGKILL)
            yield pair

    two.load_weights(stream(), 1)
    assert (first.version, second.version) == (None, 1)
    groups = generate(two, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {1})
    check_log_probs(folders["dense"], groups, 1.02)


@pytest.mark.parametrize("pause", ["retract", "abort"])
def test_one_of_two_servers_is_killed_during_a_broadcast(two, folders, using, pause):
    """Checks the other server, which misses some weights: it serves nothing before a sync, and is not restarted."""
    using(transport="distributed", pause=pause)
    two.load_weights(weights(folders["dense"]), 0)
    first, second = two.pool.servers
    pid = second.process.pid

    def stream():
        for number, pair in enumerate(weights(folders["dense"], 1.3)):
            if number == 10:
                signal_all(first, signal.SIGKILL)
            yield pair

    generation = two.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    until_in_the_middle(two, second)
    two.load_weights(stream(), 1)
    assert two.pool.ready() == [] and second.is_up
    found = {}
    with pytest.raises(NeedsWeights):
        while groups := generation.wait():
            found.update(groups)
    two.load_weights(weights(folders["dense"], 1.3), 1)
    assert second.version == 1 and second.process.pid == pid
    while groups := generation.wait():
        found.update(groups)
    check([found[number] for number in range(len(PROMPTS))], {0, 1})
    again = generate(two, PROMPTS, SAMPLING, group_size=2, seed=0)
    check(again, {1}, group_size=2)
    check_log_probs(folders["dense"], again, 1.3)


def test_the_only_server_is_killed_during_generation(start, folders):
    engine = start(1)
    server = engine.pool.servers[0]
    in_the_middle(engine, server, lambda: signal_all(server, signal.SIGKILL))
    generation = engine.start(PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    found = {}
    with pytest.raises(NeedsWeights):
        while groups := generation.wait():
            found.update(groups)
    assert len(found) < len(PROMPTS)
    engine.load_weights(weights(folders["dense"]), 0)
    while groups := generation.wait():
        assert not found.keys() & dict(groups).keys()
        found.update(groups)
    groups = [found[number] for number in range(len(PROMPTS))]
    check(groups, {0})
    check_log_probs(folders["dense"], groups)


def test_servers_that_fail_repeatedly(start):
    engine = start(1, max_restarts=0)
    server = engine.pool.servers[0]
    in_the_middle(engine, server, lambda: signal_all(server, signal.SIGKILL))
    with pytest.raises(UserError, match=r"0 of 1 rollout servers are left, and 1 are needed: .* was killed by SIGKILL"):
        generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
