"""The surroundings of a process: its limits, its environment variables and the warnings of libraries."""

import logging
import os
import resource
import warnings
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


def order_kernels(*, tensor: int, context: int) -> None:
    """Sets CUDA_DEVICE_MAX_CONNECTIONS to 1 if tensor- or context-parallel ranks exist, unless it is set already.

    CUDA reads this number of hardware queues once, when it starts. With one queue, kernels start in the order in which
    they were launched. Megatron relies on this for the overlap of these ranks' collectives with matrix products: a
    collective has to start before the product that it overlaps with, which would occupy the whole GPU. Call this before
    anything asks torch for a GPU.
    """
    if max(tensor, context) > 1:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def ignore_upstream_warnings() -> None:
    """Leaves out the warnings of Megatron and torch that users can do nothing about."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # about optional packages
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(megatron\.core|torch\.distributed)")
    # newer releases want another package to write checkpoints in the background
    logging.getLogger("megatron.core.dist_checkpointing").setLevel(logging.ERROR)
    # newer releases call GPTModel deprecated: docs/upstream.md says why the policy is one
    logging.getLogger("megatron.core.models.gpt.gpt_model").setLevel(logging.ERROR)
