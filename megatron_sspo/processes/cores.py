"""The cores that this process may use: on a node of Slurm, those of its job."""

import os


def usable_cores() -> list[int]:
    """Returns the numbers of the cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def num_cores() -> int:
    """Returns how many cores this process may use."""
    return len(usable_cores())
