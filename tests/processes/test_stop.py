"""Stop requests and the processes that a run forks."""

import multiprocessing
import os
import signal
import time

import pytest

from megatron_sspo.checkpoint.saving import children_end_with_this_process
from megatron_sspo.processes.stop import Stop


@pytest.fixture
def stop(tmp_path):
    made = Stop(tmp_path)
    yield made
    made.close()


def sleeper():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    return process


def test_a_process_that_a_reward_forks_ends_by_sigterm(stop):
    process = sleeper()
    process.terminate()
    process.join(20)
    exit_code = process.exitcode
    process.kill()
    assert exit_code == -signal.SIGTERM
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    assert not stop._signal
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop._signal == signal.SIGTERM


def test_the_process_that_writes_a_checkpoint_does_not(stop):
    with children_end_with_this_process():
        process = sleeper()
    time.sleep(1)
    process.terminate()
    process.join(2)
    exit_code = process.exitcode
    process.kill()
    assert exit_code is None
