"""Servers that are killed or freeze: the run goes on, every response comes once, and the server comes back."""

import os
import signal
import threading
import time

import psutil
import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.rollout import sglang
from megatron_sspo.rollout.engine import NeedsWeights, Sampling, generate
from megatron_sspo.types import Prompt
from megatron_sspo.weights.hf_folder import HFFolder
from tests.policy.tiny_policy import TEMPERATURE, log_probs, reference

PROMPTS = [Prompt(id=str(n), tokens=(n + 2, n + 3, n + 4), answer="") for n in range(12)]
SAMPLING = Sampling(max_tokens=110, temperature=TEMPERATURE)
GROUP = 8


@pytest.fixture
def start(folders, tmp_path):
    """start(num_servers): an engine with weights."""
    made = []

    def of(num_servers, **options):
        engine = sglang.engine(folders["dense"], num_servers=num_servers, run_folder=tmp_path, **options)
        made.append(engine)
        engine.load_weights(weights(folders), 0)
        return engine

    yield of
    for engine in made:
        engine.close()


def weights(folders, factor=1.0):
    folder = HFFolder(folders["dense"])
    return ((name, folder.read(name) * factor) for name in folder.index)


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


def check(engine, groups, version):
    assert [group.prompt for group in groups] == PROMPTS
    assert all(len(group.rollouts) == GROUP for group in groups)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert {rollout.policy_version for rollout in rollouts} == {version}
    long = [rollout.tokens for rollout in rollouts if len(rollout.tokens) > 20]  # chance repeats short ones
    assert len(long) > len(rollouts) / 2 and len(set(long)) == len(long), "a response was counted twice"


def check_log_probs(folders, groups, factor=1.0):
    model = reference(folders["dense"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
        for group in groups:
            for rollout in group.rollouts[:2]:
                expected = log_probs(model, group.prompt, rollout)
                torch.testing.assert_close(torch.tensor(rollout.rollout_log_probs), expected, rtol=0, atol=1e-4)


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_fails_while_it_generates(start, folders, how):
    engine = start(2, health_seconds=6.0)
    first = engine.pool.servers[0]
    pid = first.process.pid
    later(0.3, lambda: signal_all(first, how))
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(engine, groups, 0)
    check_log_probs(folders, groups)
    assert first.num_restarts == 1 and first.process.pid != pid
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    # it comes back with the weights of the next sync
    until(lambda: first.is_up or (engine._run(engine.pool.check()) is None and first.is_up), 120)
    engine.load_weights(weights(folders, 1.02), 1)
    assert [server.version for server in engine.pool.servers] == [1, 1]
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=1)
    check(engine, groups, 1)
    check_log_probs(folders, groups, 1.02)


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
    engine.load_weights(weights(folders), 0)
    while groups := generation.wait():
        assert not found.keys() & dict(groups).keys()
        found.update(groups)
    groups = [found[number] for number in range(len(PROMPTS))]
    check(engine, groups, 0)
    check_log_probs(folders, groups)


def test_one_of_two_is_killed_while_it_is_given_weights(start, folders):
    engine = start(2, bucket_bytes=20_000)
    first, second = engine.pool.servers

    def stream():
        for number, pair in enumerate(weights(folders, 1.02)):
            if number == 10:
                signal_all(first, signal.SIGKILL)
            yield pair

    engine.load_weights(stream(), 1)
    assert (first.version, second.version) == (None, 1)
    groups = generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
    check(engine, groups, 1)
    check_log_probs(folders, groups, 1.02)


def test_servers_that_fail_again_and_again(start):
    engine = start(1, max_restarts=0)
    later(0.3, lambda: signal_all(engine.pool.servers[0], signal.SIGKILL))
    with pytest.raises(UserError, match=r"0 of 1 rollout servers are left, and 1 are needed: .* was killed by SIGKILL"):
        generate(engine, PROMPTS, SAMPLING, group_size=GROUP, seed=0)
