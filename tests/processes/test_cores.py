"""Tests of the number of cores that a process may use."""

import os

from megatron_sspo.processes.cores import num_cores, usable_cores


def test_the_cores_of_a_job_count_and_not_those_of_its_node() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert num_cores() == 1 and usable_cores() == [min(allowed)]
    finally:
        os.sched_setaffinity(0, allowed)
    assert num_cores() == len(allowed)
