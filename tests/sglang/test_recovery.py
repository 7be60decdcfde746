"""Servers that are killed or freeze: the run goes on, every response comes once, and the server comes back."""

import os
import signal
import threading

import psutil
import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.rollout import sglang
from megatron_sspo.rollout.engine import NeedsWeights
from tests.sglang.served import GROUP, PROMPTS, SAMPLING, check, check_log_probs, generate, until, weights


def later(seconds, action):
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def processes(server):
    """A server's own processes, the one that was started first."""
    first = psutil.Process(server.process.pid)
    return [first, *first.children(recursive=True)]


def signal_all(server, number):
    for process in processes(server):
        os.kill(process.pid, number)


@pytest.fixture(scope="module")
def two(folders, tmp_path_factory):
    """An engine with two servers, each of which comes back after what happens to it."""
    folder = tmp_path_factory.mktemp("run")
    engine = sglang.engine(
        folders["dense"], num_servers=2, run_folder=folder, health_seconds=6.0, bucket_bytes=20_000, verify_every=1
    )
    yield engine
    engine.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_fails_while_it_generates(two, folders, how):
    two.load_weights(weights(folders["dense"]), 0)
    first = two.pool.servers[0]
    pid, restarts = first.process.pid, first.num_restarts
    later(0.3, lambda: signal_all(first, how))
    groups = generate(two, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(groups, {0})
    check_log_probs(folders["dense"], groups)
    assert first.num_restarts == restarts + 1 and first.process.pid != pid
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    # it comes back with the weights of the next sync
    until(lambda: first.is_up or (two._run(two.pool.check()) is None and first.is_up), 120)
    two.load_weights(weights(folders["dense"], 1.02), 1)
    assert [server.version for server in two.pool.servers] == [1, 1]
    groups = generate(two, PROMPTS, SAMPLING, group_size=GROUP, seed=1)
    check(groups, {1})
    check_log_probs(folders["dense"], groups, 1.02)


def test_one_of_two_is_killed_while_it_is_given_weights(two, folders):
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


def test_the_only_one_is_killed_while_it_generates(start, folders):
    engine = start(1)
    server = engine.pool.servers[0]
    later(0.5, lambda: signal_all(server, signal.SIGKILL))
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


def test_servers_that_fail_again_and_again(start):
    engine = start(1, max_restarts=0)
    later(0.3, lambda: signal_all(engine.pool.servers[0], signal.SIGKILL))
    with pytest.raises(UserError, match=r"0 of 1 rollout servers are left, and 1 are needed: .* was killed by SIGKILL"):
        generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
