"""A rank that stops to answer while the process group begins or ends does not keep the others waiting without end."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from megatron_sspo.processes.ports import free_port
from tests.forking import Python

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("waiting.py")


def start(scenario: str, rank: int, port: int) -> Python:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
    return Python(str(PROGRAM), scenario, folder=PROGRAM.parents[2], environment=environment)


@pytest.mark.parametrize("scenario", ["start", "end"])
def test_a_rank_that_waits_alone_ends(scenario: str) -> None:
    """Covers a start to which the other rank has only connected, and an end whose last barrier it has not reached."""
    port, kept = free_port(), []
    started = [start(scenario, 0, port)]
    try:
        if scenario == "start":
            kept.append(dist.TCPStore("127.0.0.1", port, 2, is_master=False))
        else:
            started.append(start(scenario, 1, port))
        texts = [process.communicate(timeout=90) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert all(process.returncode in (1, 2) for process in started), texts
    assert any("Timeout (0:00:06)!" in err for _, err in texts), texts
