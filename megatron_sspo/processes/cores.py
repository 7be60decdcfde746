"""The cores that this process may use."""

import os


def num_cores() -> int:
    """Returns the number of cores that this process may use: on a node of Slurm, those of its job."""
    return len(os.sched_getaffinity(0))
