"""Deliberate hangs of small processes, which end with their stacks."""

import os
from pathlib import Path

import pytest

from megatron_sspo.processes.ports import free_port
from tests.forking import Python

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("watched.py")
TIMEOUT = "3"


def run(scenario: str) -> list[tuple[int, str, str]]:
    """Returns (exit code, standard output, standard error) of both ranks; those that wait for an ended one end, too."""
    port, started = str(free_port()), []
    for rank in "01":
        place = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        arguments = (str(PROGRAM), scenario, TIMEOUT)
        started.append(Python(*arguments, folder=PROGRAM.parents[2], environment={**os.environ, **place}))
    try:
        found = [process.communicate(timeout=60) for process in started]
        return [(process.returncode, *texts) for process, texts in zip(started, found, strict=True)]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("scenario", "rank", "stack"),
    [
        ("sleep_on_rank_1", 1, "in sleep_on_rank_1"),
        ("sleep_on_rank_1", 0, "in barrier"),  # limits its own waits, too
        ("keep_the_lock_on_rank_0", 0, "in keep_the_lock_on_rank_0"),
        ("fork_and_go_on", 1, "in sleep_on_rank_1"),
    ],
)
def test_a_rank_without_progress_ends_with_its_stacks(scenario: str, rank: int, stack: str) -> None:
    found = run(scenario)
    code, out, err = found[rank]
    assert code == 1 and "clean" not in out, found
    assert "Timeout (0:00:03)!" in err and stack in err
    assert all(code for code, _, _ in found)


def test_a_rank_waits_for_rank_0_without_a_limit() -> None:
    found = run("work_for_long_on_rank_0")
    assert [(code, out) for code, out, _ in found] == [(0, "clean\n")] * 2, found
