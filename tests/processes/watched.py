"""One rank of a small job whose silence is limited: `python watched.py SCENARIO TIMEOUT`."""

import ctypes
import os
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from megatron_sspo.processes import agree
from megatron_sspo.processes.hang import mark_progress, silence_limited

scenario, timeout = sys.argv[1], float(sys.argv[2])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def sleep_on_rank_1() -> None:
    """Lets rank 1 sleep in place of a collective of all ranks."""
    if rank == 1:
        time.sleep(1000)
    agree.barrier()


def keep_the_lock_on_rank_0() -> None:
    """Waits in C code without giving back Python's lock, so that no thread of Python's runs."""
    if rank == 0:
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # no signal interrupts it, unlike a sleep
    agree.barrier()


def work_for_long_on_rank_0() -> None:
    """Works on rank 0 for longer than the limit, as in a long generation, while the other ranks wait for it."""
    if rank == 0:
        for _ in range(25):
            time.sleep(0.2)
            mark_progress()
    agree.barrier()


def fork_and_go_on() -> None:
    """Forks, as a pool of workers does: the fork ends by itself, and this process goes on under its limit."""
    pid = os.fork()
    if not pid:
        mark_progress()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    sleep_on_rank_1()


dist.init_process_group("gloo", timeout=timedelta(days=1))
agree.make_control_group()
with silence_limited(timeout):
    globals()[scenario]()
    agree.barrier()
time.sleep(1.5 * timeout)  # outside there is no limit
print("clean", flush=True)
