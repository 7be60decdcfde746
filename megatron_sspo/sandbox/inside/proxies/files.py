"""Hides the files in which a test keeps its expected results from the program.

A file is removed while the program runs if a test has written it, reads it again, and has not passed its path to the
program.
"""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

_READING = ("read_text", "read_bytes")


class OwnFiles:
    """The files of the tests.

    Once a test has written such a file, the program's processes are stopped whenever no request is in progress, since
    one of its threads could read the file, or write into it.

    Args:
        nodes: all nodes of the tests' syntax trees.
    """

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self._read = set(_paths_read(list(nodes)))
        self._written: set[str] = set()
        self._is_program_running = False
        if self._read:
            sys.addaudithook(self._audit_open)

    @property
    def has_any(self) -> bool:
        """Returns whether there may be files to hide."""
        return bool(self._read)

    def _audit_open(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes)):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if path in self._read and flags & os.O_ACCMODE != os.O_RDONLY:
            self._written.add(path)
            if not self._is_program_running:
                _signal_program(signal.SIGSTOP)

    @contextlib.contextmanager
    def hide(self, passed: Any) -> Iterator[None]:
        """Removes the files while the program runs, except those whose path is among the passed values."""
        texts = list(_texts(passed))
        given = {path for path in self._read if any(_mentions(text, path) for text in texts)}
        self._read -= given
        self._written -= given
        contents: dict[str, bytes] = {}
        for path in self._written:
            with contextlib.suppress(OSError):
                with open(path, "rb") as file:
                    contents[path] = file.read()
                os.unlink(path)
        was_running, self._is_program_running = self._is_program_running, True
        if not was_running:
            _signal_program(signal.SIGCONT)
        try:
            yield
        finally:
            self._is_program_running = was_running
            if not was_running and self._written:
                _signal_program(signal.SIGSTOP)
            for path, content in contents.items():
                with contextlib.suppress(OSError):
                    os.unlink(path)  # what the program has put there, such as a pipe whose other end it holds
                with contextlib.suppress(OSError), open(path, "xb") as file:
                    file.write(content)


def _signal_program(number: int) -> None:
    """Sends a signal to all processes of the sandbox except this one; after SIGSTOP, waits for the program's stop."""
    if os.getpid() != 1:  # the judge is the sandbox's init; elsewhere these would be all processes of the machine
        return
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the program has ended
        os.kill(-1, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _mentions(text: str, path: str) -> bool:
    folder = os.path.abspath(text) if text else ""
    is_parent = folder not in ("", "/", "/tmp", os.getcwd()) and path.startswith(f"{folder}/")
    return os.path.basename(path) in text or is_parent


def _texts(value: Any, depth: int = 4) -> Iterator[str]:
    if isinstance(value, (str, bytes, os.PathLike)) and type(value).__module__ in ("builtins", "pathlib"):
        yield os.fsdecode(value)
    elif isinstance(value, (list, tuple, set, dict)) and depth:
        for item in value.items() if isinstance(value, dict) else value:
            yield from _texts(item, depth - 1)


def _paths_read(nodes: list[ast.AST]) -> Iterator[str]:
    known = {
        target.id: node.value.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        path: ast.AST | None = None
        if isinstance(node.func, ast.Name) and node.func.id == "open" and node.args:
            mode = (
                node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "mode"), None)
            )
            is_reading = mode is None or (isinstance(mode, ast.Constant) and str(mode.value).startswith("r"))
            path = node.args[0] if is_reading else None
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _READING:
            made = node.func.value
            path = made.args[0] if isinstance(made, ast.Call) and made.args else None
        if isinstance(path, ast.Constant) and isinstance(path.value, str):
            yield os.path.abspath(path.value)
        elif isinstance(path, ast.Name) and path.id in known:
            yield os.path.abspath(known[path.id])
