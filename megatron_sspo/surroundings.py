"""What a process finds itself in: its folder, its streams, how many files it may open."""

import io
import os
import resource
import sys

from megatron_sspo.errors import UserError

FEWEST_FILES = 256  # that a run may have to have open; its sockets and the writers of a checkpoint take some hundred


def prepare_process() -> None:
    """To be called first of all, before torch is imported, which says nothing sensible of a folder that has gone.

    A standard stream that is closed becomes /dev/null, so that no file gets its number and another program's output.
    What a terminal or file cannot encode is written with backslashes. The limit on open files is raised to the most
    that the process may have.

    Raises:
        UserError: the working folder is not there any more.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            is_ascii = stream.encoding.lower() in ("ascii", "ansi_x3.4-1968", "us-ascii")
            stream.reconfigure(encoding="utf-8" if is_ascii else None, errors="backslashreplace")
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            "the folder that this command was started in has gone: change into one that is there"
        ) from error
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
