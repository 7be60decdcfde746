"""Errors of a machine that refuses memory, a thread or a process, as one sentence in place of a traceback."""

import errno
import traceback
from pathlib import Path

from megatron_sspo.errors import UserError, first_line

_PACKAGE = Path(__file__).parents[1]
_SAID = (  # by Python's threads, by gloo and other libraries of C++, by torch
    "can't start new thread",
    "Resource temporarily unavailable",
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "failed to map segment from shared object",  # by the loader of libraries, in an ImportError or an OSError
)


def refusal_as_user_error(error: BaseException) -> UserError | None:
    """Returns the UserError for an error that limits of the machine or of the shell have caused; None for others."""
    is_of_system = isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM) and error.filename is None
    is_of_library = isinstance(error, (RuntimeError, ImportError, OSError)) and any(
        said in str(error) for said in _SAID
    )
    if not (isinstance(error, MemoryError) or is_of_system or is_of_library):
        return None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _PACKAGE in Path(frame.filename).parents]
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return UserError(
        f"the machine has refused memory, a thread or a process{where} ({first_line(error)}): raise the limits "
        "`ulimit -u` and `ulimit -v`, those of the container or the job, or let the command need less"
    )
