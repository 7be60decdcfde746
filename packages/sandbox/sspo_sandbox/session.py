"""An interpreter in a sandbox that keeps its state from one cell to the next, for episodes that act by code."""

import contextlib
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from sspo_sandbox.box import STARTED, LimitedPipe, SandboxProcess, read_until
from sspo_sandbox.types import MEBIBYTE, Limits, SandboxBroken

_GRACE_SECONDS = 3.0  # for an interrupted interpreter to reply before it is killed, on a busy machine too
_REPLY_BYTES = 1024**2
_SESSION_ENDED = "[the session is over]"


class LocalSession:
    """A session on this machine. Cells run one after another; any thread may send them.

    A cell that exceeds its deadline is interrupted, and the state survives. If the cell cannot be interrupted, or ends
    the interpreter, the session ends, and the observation says so.

    Attributes:
        is_alive: whether the next cell will be executed.

    Args:
        process: makes the sandbox, which lives as long as the session.
        limits: the limits; `wall_seconds` and `output_bytes` apply to each cell.
    """

    def __init__(self, process: contextlib.AbstractContextManager[SandboxProcess], limits: Limits) -> None:
        self._limits = limits
        self._stack = contextlib.ExitStack()
        self._number = 0
        self.is_alive, self._closed = True, False
        self._closing = threading.Lock()
        # the kernel kills bubblewrap when the thread that started it ends, so it gets its own thread
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-session")
        try:
            self._process = self._thread.submit(self._stack.enter_context, process).result()
        except BaseException:
            self._thread.shutdown()
            raise
        self._channel = LimitedPipe(self._process.channel, _REPLY_BYTES)

    def execute(self, code: str, seconds: float | None = None) -> str:
        """Runs a cell and returns the observation: its output, then its last expression's value or the traceback.

        Args:
            seconds: the cell's deadline; `limits.wall_seconds` by default.

        Raises:
            SandboxBroken: the sandbox itself could not be made, so no cell was executed.
        """
        with self._closing:
            if self._closed:
                return _SESSION_ENDED
            future = self._thread.submit(self._execute, code, seconds or self._limits.wall_seconds)
        return future.result()

    def close(self) -> None:
        """Ends the interpreter and all processes that it started. It may be called more than once."""
        with self._closing:  # the sandbox and a rollout may close it at the same time, while a cell is sent
            if self._closed:
                return
            self._closed, self.is_alive = True, False
        self._process.kill()
        self._thread.submit(self._stack.close).result()
        self._thread.shutdown()

    def _execute(self, code: str, seconds: float) -> str:
        if not self.is_alive:
            return _SESSION_ENDED
        self._number += 1
        request = json.dumps({"code": code, "number": self._number, "seconds": seconds}).encode() + b"\n"
        printed = LimitedPipe(self._process.stdout, self._limits.output_bytes)
        replies = self._channel.content
        cause = read_until(
            self._process,
            [printed, self._channel],
            self._channel,
            seconds + _GRACE_SECONDS,
            request=request,
            is_done=lambda: b"\n" in replies,
        )
        text = None
        if cause == "done":
            printed.read()  # what was printed before the reply is in the pipe by now
            start, _, rest = bytes(replies).partition(b"\n")
            replies[:] = STARTED + rest
            text = _parse_reply(start.removeprefix(STARTED), self._number)
        if text is None:
            self.is_alive = False
            out_of_memory = self._process.end()
            if not (replies.startswith(STARTED) or out_of_memory or self._closed):
                raise SandboxBroken(f"the sandbox could not be made (exit code {self._process.exit_code()})")
            printed.read()
            text = f"{_SESSION_ENDED[:-1]}: {self._explain(cause, out_of_memory, seconds)}]\n"
        return printed.content.decode("utf-8", "replace") + text

    def _explain(self, cause: str, out_of_memory: bool, seconds: float) -> str:
        if out_of_memory:
            return f"it used more than {self._limits.memory_bytes // MEBIBYTE} MiB"
        exit_code = self._process.exit_code()
        if exit_code == 128 + signal.SIGXCPU:
            return "its CPU time is used up"
        return {
            "time": f"the cell was not done after {seconds:g} seconds, and could not be interrupted",
            "output": f"the cell printed more than {self._limits.output_bytes} bytes",
            "ended": f"the cell ended the interpreter with exit code {exit_code}",
            "done": "the cell wrote an invalid reply into the sandbox's channel",
        }[cause]


def _parse_reply(line: bytes, number: int) -> str | None:
    """Returns a reply's text; None for one that a program has written, which affects only its observation."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("number") != number or not isinstance(found.get("text"), str):
        return None
    return found["text"].encode(errors="backslashreplace").decode()  # no tokenizer takes half of a surrogate pair
