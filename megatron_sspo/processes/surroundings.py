"""The surroundings of a process: its streams, working folder, signals, limits and environment variables; its boot."""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from megatron_sspo.errors import UserError
from megatron_sspo.processes.output import survive_closed_output
from megatron_sspo.processes.stop import SIGNALS

MIN_OPEN_FILES = 256  # a run's sockets and its checkpoint writers need some hundred file descriptors


def prepare_process() -> None:
    """Prepares standard streams, checks the working folder, and raises some soft limits to the hard ones.

    These limits are on open files, and on locked memory: InfiniBand locks the buffers of NCCL, and Slurm gives a job
    the soft limits of the shell that has submitted it.

    A service may start a command with SIGCHLD ignored, so that the exit codes of its processes are lost, or with the
    stop signals blocked: both are inherited, and undone here.

    Also keeps NumPy's OpenBLAS from starting a thread for each core, which nothing here needs: a process with threads
    cannot be forked. Call it before torch and NumPy are imported: torch's error about a missing working folder is hard
    to understand.

    Raises:
        UserError: the working folder does not exist any more.
    """
    survive_closed_output()
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            "the working directory of this command does not exist any more: change to an existing one"
        ) from error
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # outside of the main thread, in a program that calls the command line
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGCHLD, *SIGNALS})
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            resource.setrlimit(limit, (hard, hard))


def check_open_files() -> None:
    """Checks that the limit on open files is high enough for a run.

    Raises:
        UserError: the limit is too low.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        raise UserError(
            f"the limit on open files is {limit}, but a run needs {MIN_OPEN_FILES}: raise it, for example with "
            "`ulimit -n 4096`"
        )


@contextmanager
def environment_with(variables: Mapping[str, str | None]) -> Iterator[None]:
    """A context manager that sets environment variables, or removes those that are None, and restores them."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
