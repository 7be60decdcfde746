"""One rank of a small job under a watchdog: `python watched.py SCENARIO LOG TIMEOUT STOP_TIMEOUT`."""

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from megatron_sspo.processes import agree
from megatron_sspo.processes.watch.control_store import ControlStore
from megatron_sspo.processes.watch.progress import mark_progress, watched_user_call
from megatron_sspo.processes.watch.watchdog import Ranks, Watchdog

scenario, log, timeout, stop_timeout = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
asked = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: asked.append(1))


def sleep_on_rank_1() -> None:
    """Lets rank 1 sleep instead of calling a collective."""
    if rank == 1:
        time.sleep(1000)
    agree.barrier()


def sleep() -> None:
    time.sleep(1000)


def keep_the_lock() -> None:
    """Waits in C code without giving back Python's lock, so that no thread runs."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # no signal interrupts it, unlike a sleep


def keep_the_lock_on_rank_0() -> None:
    if rank == 0:
        keep_the_lock()
    agree.barrier()


def fail_on_rank_1() -> None:
    if rank == 1:
        raise ValueError("something broke")
    agree.barrier()


def fail_with_a_path() -> None:
    if rank == 1:
        raise ValueError("\udcff cannot be read")
    time.sleep(1000)


def work_until_asked() -> None:
    """Makes steps of a tenth of a second with a collective each, like a run's updates, until a stop signal."""
    while not any(agree.all_gather_objects(bool(asked))):
        time.sleep(0.1)


def wait_with_beats() -> None:
    """Waits longer than the timeout in one place while another thread calls `mark_progress`, as for busy servers."""
    import threading

    done = threading.Event()
    if rank == 0:

        def serve() -> None:
            for _ in range(30):
                mark_progress()
                time.sleep(0.2)
            done.set()

        threading.Thread(target=serve).start()
        done.wait()
    agree.barrier()


def compute(seconds: float) -> None:
    """Computes in Python; the stack of the main thread is another one at each check."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fibonacci(15)


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def never_return_to_rank_0() -> None:
    """Computes without end in code of the user's on rank 0, the second time that it is called."""
    with watched_user_call("MyReward.score"):
        pass
    if rank == 0:
        with watched_user_call("MyReward.score"):
            compute(1000)
    agree.barrier()


def call_twice() -> None:
    """Runs code of the user's for three seconds twice, the second time after a stop signal."""
    for _ in range(2):
        with watched_user_call("MyReward.score"):
            compute(3)
        print("called", flush=True)
        while not any(agree.all_gather_objects(bool(asked))):
            time.sleep(0.1)


def call_with_marks() -> None:
    """Runs code of the user's for longer than the timeout, which marks its progress."""
    if rank == 0:
        with watched_user_call("MyReward.score"):
            for _ in range(6):
                compute(1)
                mark_progress()
    agree.barrier()


def wait_patiently() -> None:
    with watchdog.allow_silence():
        time.sleep(6)


dist.init_process_group("gloo", timeout=timedelta(days=1))
agree.make_control_group()
watchdog = Watchdog(
    Ranks.gather(rank),
    ControlStore() if world_size > 1 else None,
    log=log,
    timeout=timeout,
    stop_timeout=stop_timeout,
    signals=(signal.SIGTERM, signal.SIGUSR1),
    report=lambda why, code: print(f"REPORT {code} {why!a}", flush=True),
)
with watchdog:
    print("ready", flush=True)
    globals()[scenario]()
    agree.barrier()
agree.barrier()
dist.destroy_process_group()
print("clean", flush=True)
