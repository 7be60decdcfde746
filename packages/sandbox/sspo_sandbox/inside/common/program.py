"""Runs a program as Python would, in the current process."""

from __future__ import annotations

import json
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

NAME = "program.py"
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(__file__))  # `inside`


def read_job(descriptor: int) -> dict[str, Any]:
    """Returns the job that a file descriptor holds, and closes the descriptor."""
    with open(descriptor, "rb") as file:
        return json.loads(file.read())


def run(job: int, channel: int) -> None:
    """Runs the program of a job as `__main__`, with the job's files beside it."""
    os.close(channel)
    work = read_job(job)
    write_files(work["files"])
    execute(work["program"], "__main__")


def write_files(files: dict[str, str]) -> None:
    """Writes files into the working directory."""
    for name, content in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(content)


def execute(source: str, name: str) -> dict[str, Any]:
    """Executes a program as the module `name` and returns its globals. Its exceptions are not caught."""
    sys.excepthook = print_exception
    sys.path.insert(0, os.getcwd())
    module = types.ModuleType(name)
    module.__file__ = NAME
    module.__loader__ = _Loader(source)  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules[name] = module
    source = source.removeprefix("\ufeff")  # a byte order mark, as Python's own reader of files ignores it
    exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


class _Loader:
    """A module's loader, from which `linecache` gets the program's lines; importing `linecache` itself is slow."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, name: str) -> str:
        """Returns the source of the program."""
        return self._source


def remember_lines(name: str, source: str) -> None:
    """Stores the lines of a source in `linecache`, so that a traceback can show them."""
    import linecache  # slow to import, and only needed for a test that fails or a cell of a session

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def print_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Prints an exception as Python does, without the frames of this package."""
    sys.stderr.write(format_exception(kind, error, trace))


def format_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> str:
    """Formats an exception without this package's frames, which come before the program's."""
    import traceback  # slow to import, and right programs do not need it

    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_PACKAGE_FOLDER, "<string>")):
        trace = trace.tb_next
    return "".join(traceback.format_exception(kind, error, trace))
