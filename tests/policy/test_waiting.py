"""A rank that stops to answer while the process group begins or ends does not keep the others waiting without end."""

import os
from pathlib import Path

import pytest
import torch.distributed as dist

from megatron_sspo.processes.ports import free_port
from megatron_sspo.processes.watch.watchdog import HUNG
from tests.forking import Python

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("waiting.py")


def start(scenario: str, log: Path, rank: int, port: int) -> Python:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
    return Python(str(PROGRAM), scenario, str(log), folder=PROGRAM.parents[2], environment=environment)


@pytest.mark.parametrize("scenario", ["start", "end"])
def test_a_rank_that_waits_alone_ends(scenario: str, tmp_path: Path) -> None:
    """Covers a start to which the other rank has only connected, and an end whose last barrier it has not reached."""
    port, log, kept = free_port(), tmp_path / "log.txt", []
    started = [start(scenario, log, 0, port)]
    try:
        if scenario == "start":
            kept.append(dist.TCPStore("127.0.0.1", port, 2, is_master=False))
        else:
            started.append(start(scenario, log, 1, port))
        out, err = started[0].communicate(timeout=90)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert started[0].returncode == HUNG, (started[0].returncode, out, err)
    assert f"REPORT {HUNG} the run hangs: no rank has made progress for 3 s" in out
    assert "--- stack of rank 0" in log.read_text()
