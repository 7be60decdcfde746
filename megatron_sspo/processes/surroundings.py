"""Prepares a process: its standard streams, its working folder, and its limit on open files."""

import os
import resource

from megatron_sspo.errors import UserError
from megatron_sspo.processes.output import outlive_closed_output

FEWEST_FILES = 256  # that a run may have to have open; its sockets and the writers of a checkpoint take some hundred


def prepare_process() -> None:
    """Prepares standard streams, checks the working folder, and raises the limit on open files as far as is allowed.

    Called before torch is imported, which says nothing sensible of a folder that has gone.

    Raises:
        UserError: the working folder is not there any more.
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
    """Refuses a limit on open files with which a run would fail on its way.

    Raises:
        UserError: the limit is too low.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < FEWEST_FILES:
        raise UserError(
            f"a process may open {limit} files at a time, and a run needs {FEWEST_FILES}: raise the limit, such as by "
            "`ulimit -n 4096`"
        )
