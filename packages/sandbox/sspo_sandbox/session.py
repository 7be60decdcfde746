"""An interpreter in a sandbox that keeps its state from one cell to the next, for episodes that act by code."""

import contextlib
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sspo_sandbox.box import START_SECONDS, STARTED, LimitedPipe, SandboxProcess
from sspo_sandbox.types import MEBIBYTE, Limits, SandboxBroken

_GRACE_SECONDS = 3.0  # for an interrupted interpreter to reply before it is killed, on a busy machine too
_REPLY_BYTES = 1024**2
_MAX_CHARACTERS = 20_000  # the most characters of an observation
_SESSION_ENDED = "[the session is over]"


class LocalSession:
    """A session on this machine. Cells run one after another; any thread may send them.

    A cell that exceeds its deadline is interrupted, and the state survives. If the cell cannot be interrupted, or ends
    the interpreter, the session ends, and the observation says so.

    Args:
        start_process: a function that makes the sandbox, which lives as long as the session.
        limits: the limits; `wall_seconds` and `output_bytes` apply to each cell.
    """

    def __init__(
        self, start_process: Callable[[], contextlib.AbstractContextManager[SandboxProcess]], limits: Limits
    ) -> None:
        self._limits = limits
        self._stack = contextlib.ExitStack()
        self._number = 0
        self._alive, self._closed = True, False
        self._closing = threading.Lock()
        # the kernel kills bubblewrap when the thread that started it ends, so it gets its own thread
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-session")
        try:
            self._process = self._thread.submit(self._start, start_process).result()
        except BaseException:
            self._thread.shutdown()
            raise
        self._channel = LimitedPipe(self._process.channel, _REPLY_BYTES)

    @property
    def is_alive(self) -> bool:
        """Returns whether the next cell will be executed."""
        return self._alive

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
            self._closed, self._alive = True, False
        self._process.kill()
        self._thread.submit(self._stack.close).result()
        self._thread.shutdown()

    def _start(self, start_process: Callable[[], contextlib.AbstractContextManager[SandboxProcess]]) -> SandboxProcess:
        return self._stack.enter_context(start_process())

    def _execute(self, code: str, seconds: float) -> str:
        if not self._alive:
            return _SESSION_ENDED
        self._number += 1
        request = json.dumps({"code": code, "number": self._number, "seconds": seconds}).encode() + b"\n"
        printed = LimitedPipe(self._process.stdout, self._limits.output_bytes)
        text, cause = self._exchange(request, printed, seconds + _GRACE_SECONDS)
        if cause:
            self._alive = False
            out_of_memory = self._process.end()
            if not (self._channel.content.startswith(STARTED) or out_of_memory or self._closed):
                raise SandboxBroken(f"the sandbox could not be made (exit code {self._process.exit_code()})")
            printed.read()
            text = f"{_SESSION_ENDED[:-1]}: {self._explain(cause, out_of_memory, seconds)}]\n"
        return _truncate(printed.content.decode("utf-8", "replace") + text)

    def _exchange(self, request: bytes, printed: LimitedPipe, seconds: float) -> tuple[str, str]:
        """Sends a cell and waits for its end; returns the text of its reply, or why there is none."""
        assert self._process.stdin is not None
        has_started = self._channel.content.startswith(STARTED)
        deadline = time.monotonic() + (seconds if has_started else START_SECONDS)
        os.set_blocking(self._process.stdin.fileno(), False)
        poller = select.poll()
        for descriptor in (self._process.status, self._process.stdout, self._process.channel):
            poller.register(descriptor, select.POLLIN)
        poller.register(self._process.stdin.fileno(), select.POLLOUT)
        while (left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poller.poll(left * 1000)}
            if self._process.stdin.fileno() in ready:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    request = request[os.write(self._process.stdin.fileno(), request) :]
                if not request:
                    poller.unregister(self._process.stdin.fileno())
            if "over limit" in (printed.read(), self._channel.read()):
                return "", "output"
            if not has_started and self._channel.content:
                deadline, has_started = time.monotonic() + seconds, True
            line, end, _ = bytes(self._channel.content[len(STARTED) :]).partition(b"\n")
            if end:
                del self._channel.content[len(STARTED) : len(STARTED) + len(line) + 1]
                printed.read()  # what was printed before the reply is in the pipe by now
                return _parse_reply(line, self._number)
            if self._process.status in ready and not self._process.read_status():
                return "", "ended"
        return "", "time"

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
            "forged": "the cell wrote an invalid reply into the sandbox's channel",
        }[cause]


def _parse_reply(line: bytes, number: int) -> tuple[str, str]:
    """Returns a reply's text, or the cause "forged": a program can write replies, which affect only its observation."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return "", "forged"
    if not isinstance(found, dict) or found.get("number") != number or not isinstance(found.get("text"), str):
        return "", "forged"
    return found["text"].encode(errors="backslashreplace").decode(), ""  # no tokenizer takes half of a surrogate pair


def _truncate(text: str) -> str:
    """Returns the beginning and the end of a text that is too long to be shown to a model."""
    left_out = len(text) - _MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"
