"""Starts a run's processes on this machine."""

import math
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from megatron_sspo.errors import escape_unprintable
from megatron_sspo.processes import stop
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.processes.forks import Fork, fork
from megatron_sspo.processes.parent import REPORT, describe_exit, exit_with_parent, is_child
from megatron_sspo.processes.ports import reserve_port

_REPORT_SECONDS = 60.0  # how long a process waits to be stopped after its report
_POLL_SECONDS = 0.1
_END_SECONDS = 120.0  # between the ends of the first and the last process, which part at a barrier


def launch(arguments: Sequence[str], num_processes: int, forked: Callable[[], int] | None = None) -> int:
    """Runs `megatron-sspo ARGUMENTS` in `num_processes` processes and returns the run's exit code.

    If a process fails, the others are killed, and the result is its exit code. All processes die with this one, which
    passes stop signals on to them. torchrun is not used, because it wraps every failure in a report of its own. Each
    process gets its share of the cores: two OpenMP pools on the same cores spin and are ten times slower.

    Args:
        forked: a function that the processes call in place of the command line, and whose result is their exit code;
            the processes are then forks of this one. None: each process has an interpreter of its own.
    """
    launcher = os.getpid()
    reports, reports_of_ranks = os.pipe()
    reserved = reserve_port()  # until rank 0 listens on it, after many seconds of imports
    environment = {**_environment(num_processes, reserved.getsockname()[1]), REPORT: str(reports_of_ranks)}
    processes: list[subprocess.Popen[bytes] | Fork] = []
    received: list[int] = []  # signals

    def forward_signal(number: int, _: Any) -> None:
        if os.getpid() == launcher:  # a fork has this handler for a moment
            received.append(number)
            for process in processes:
                process.send_signal(number)

    handlers = {number: signal.signal(number, forward_signal) for number in stop.SIGNALS}
    try:
        for rank in range(num_processes):
            variables = {**environment, **_rank_variables(rank)}
            if forked is None:  # each dies with this process, the launcher
                dies = partial(exit_with_parent, launcher)
                command, variables = _command(arguments), {**os.environ, **variables}
                processes.append(subprocess.Popen(command, env=variables, pass_fds=[reports_of_ranks], preexec_fn=dies))
            else:
                processes.append(fork(partial(_run_rank, forked, variables, handlers), f"rank {rank}"))
        for number in [*received]:  # while processes were started: the later ones have not got it
            forward_signal(number, None)
        return _wait(processes, reports)
    finally:
        if os.getpid() == launcher:  # a fork leaves this block, too
            _stop(processes)
            _restore(handlers)
            os.close(reports)
            os.close(reports_of_ranks)
            reserved.close()


def _run_rank(forked: Callable[[], int], variables: Mapping[str, str], handlers: Mapping[signal.Signals, Any]) -> int:
    """Runs a rank in a fork, with the environment and the signal handlers of a process of its own."""
    _restore(handlers)
    os.environ.update(variables)
    return forked()


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def describe_commands(arguments: Sequence[str], num_processes: int) -> list[str]:
    """Returns the command line of each process that `launch` would start, with the added environment variables."""
    with reserve_port() as reserved:
        environment = _environment(num_processes, reserved.getsockname()[1])
    return [
        shlex.join(["env", *(f"{k}={v}" for k, v in (environment | _rank_variables(rank)).items())])
        + f" {shlex.join(_command(arguments))}"
        for rank in range(num_processes)
    ]


def _environment(num_processes: int, port: int) -> dict[str, str]:
    """Returns the environment variables that are the same for all processes."""
    threads = str(max(1, num_cores() // num_processes))
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or threads,
        "WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _rank_variables(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "megatron_sspo", *arguments]


def report(message: str, exit_code: int = 2) -> None:
    """Sends a message for the user to `launch` and waits to be killed; does nothing if `launch` is not the parent.

    The process does not just exit, because the other ranks would then see broken connections and print errors of their
    own before they are killed. `exit_code` is that of the whole run.
    """
    if is_child():
        os.write(int(os.environ[REPORT]), f"{exit_code} {message}\0".encode(errors="surrogateescape"))
        time.sleep(_REPORT_SECONDS)


def _wait(processes: Sequence["subprocess.Popen[bytes] | Fork"], reports: int) -> int:
    first_end = math.inf
    with selectors.DefaultSelector() as selector:
        selector.register(reports, selectors.EVENT_READ)
        while True:
            if selector.select(_POLL_SECONDS):
                content = os.read(reports, 1 << 16).decode(errors="surrogateescape")
                exit_code, _, message = content.split("\0")[0].partition(" ")
                _say(escape_unprintable(message))
                return int(exit_code)
            codes = [process.poll() for process in processes]
            for rank, code in enumerate(codes):
                if code is not None and code not in (0, *stop.EXIT_CODES):
                    _say(f"process {rank} {describe_exit(code)}; the others are stopped")
                    return 128 - code if code < 0 else code or 2
            ended = [code for code in codes if code is not None]
            if len(ended) == len(codes):
                return max(ended)
            if ended:
                first_end = min(first_end, time.monotonic())
            if time.monotonic() - first_end > _END_SECONDS:
                _say(
                    f"process {codes.index(None)} has done its work, but has not ended {_END_SECONDS:.0f} s after the "
                    "first one, and is killed"
                )
                return max(ended)


def _say(text: str) -> None:
    print(f"megatron-sspo: {text}", file=sys.stderr, flush=True)


def _stop(processes: Sequence["subprocess.Popen[bytes] | Fork"]) -> None:
    """Kills the processes: they have nothing to save, and their own child processes die with them."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
