"""The surroundings of a process: its limits and environment variables."""

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def prepare_process() -> None:
    """Raises some soft limits to the hard ones, and keeps NumPy from starting threads. Call it before torch's import.

    The limits are on open files, and on locked memory: InfiniBand locks the buffers of NCCL, and Slurm gives a job the
    soft limits of the shell that has submitted it. NumPy's OpenBLAS would start a thread for each core, which nothing
    here needs: a process with threads cannot be forked.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            resource.setrlimit(limit, (hard, hard))


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
