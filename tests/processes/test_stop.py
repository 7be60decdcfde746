"""Stop requests and the processes that a run forks."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from megatron_sspo.processes.stop import BY_FILE, FILE, Stop


@pytest.fixture
def stop(tmp_path):
    made = Stop(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_whatever_has_the_name_of_the_file_stops_the_run(stop, tmp_path, make):
    make(tmp_path / FILE)
    assert stop.is_requested() and stop.exit_code == BY_FILE
    assert stop.reason == f"{tmp_path / FILE} was made"


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
