"""Prepares a process: its standard streams, its working folder, and its limit on open files."""

import os
import resource

from megatron_sspo.errors import UserError
from megatron_sspo.processes.output import outlive_closed_output

FEWEST_FILES = 256  # a run's sockets and its checkpoint writers need some hundred file descriptors


def prepare_process() -> None:
    """Prepares standard streams, checks the working folder, and raises the soft limit on open files to the hard limit.

    Call it before torch is imported: torch's error about a missing working folder is hard to understand.

    Raises:
        UserError: the working folder does not exist any more.
    """
    outlive_closed_output()
    try:
        os.getcwd()
    except OSError as error:
        raise UserError("the folder that this command was started in has gone: change into one that exists") from error
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_open_files() -> None:
    """Checks that the limit on open files is high enough for a run.

    Raises:
        UserError: the limit is too low.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < FEWEST_FILES:
        raise UserError(
            f"a process may open {limit} files at a time, and a run needs {FEWEST_FILES}: raise the limit, such as by "
            "`ulimit -n 4096`"
        )
