"""`Sandbox`: runs model-written programs in isolation on this machine."""

import contextlib
import json
import secrets
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sspo_sandbox.box import (
    START_SECONDS,
    STARTED,
    LimitedPipe,
    SandboxProcess,
    find_bubblewrap,
    read_until_end,
)
from sspo_sandbox.cgroup import Cgroups
from sspo_sandbox.identity import SandboxUser
from sspo_sandbox.image import Image
from sspo_sandbox.session import LocalSession
from sspo_sandbox.types import (
    MEBIBYTE,
    Case,
    EndReason,
    Limits,
    Reason,
    SandboxBroken,
    SandboxResult,
    Session,
    Verdict,
)

_VERDICT_BYTES = 64 * 1024
_OVERHEAD_BYTES = 32 * MEBIBYTE  # memory of bubblewrap and the judge, which are in the sandbox's cgroup


class Sandbox:
    """Runs programs in bubblewrap: no network, no files but one copied Python, no privileges, and limits.

    Threads may share it. Each call makes its own sandbox, which the calling thread starts and ends. The caller has to
    bound how many run at a time: see `SandboxPool`.

    Args:
        limits: the limits of each program.
        python: the interpreter that is copied into the sandbox; "" takes the one that runs this process.
        packages: distributions of this environment that programs may import, such as "numpy".
        cgroup: a delegated control group in which groups are made; "" looks for a writable one.

    Raises:
        SandboxError: bubblewrap is missing or too old, the interpreter cannot be copied, or the cgroup cannot be used.
    """

    def __init__(
        self, limits: Limits | None = None, *, python: str = "", packages: Sequence[str] = (), cgroup: str = ""
    ) -> None:
        self.limits = limits or Limits()
        self._bubblewrap = find_bubblewrap()
        self._cgroups = Cgroups(cgroup)
        self._image = Image(python, packages)
        self._free: list[_Slot] = []
        self._num_used = 0
        self._lock = threading.Lock()
        self._running: set[SandboxProcess] = set()
        self._sessions: weakref.WeakSet[LocalSession] = weakref.WeakSet()
        self._closed = False

    @property
    def has_total_memory_limit(self) -> bool:
        """Returns whether the memory limit applies to all processes of a sandbox together, which needs a cgroup."""
        return self._cgroups.can_limit_memory

    def run(
        self, program: str, stdin: str = "", files: Mapping[str, str] | None = None, *, seconds: float | None = None
    ) -> SandboxResult:
        """Runs a program until it ends or reaches a limit.

        Args:
            program: Python source; it runs as `__main__` in its own writable folder.
            stdin: the whole standard input.
            files: relative names and contents of the files beside the program.
            seconds: a deadline that replaces `limits.wall_seconds`.

        Raises:
            SandboxBroken: the sandbox itself could not be made, or was killed or closed.
        """
        job = {"program": program, "files": dict(files or {})}
        outcome = self._run_with_retries("run", job, stdin, seconds=seconds)
        return SandboxResult(
            stdout=outcome.stdout.decode("utf-8", "replace"),
            stderr=outcome.stderr.decode("utf-8", "replace"),
            exit_code=outcome.exit_code,
            end_reason=outcome.end_reason(self.limits),
            seconds=outcome.seconds,
        )

    def check(self, program: str, tests: Sequence[str] = (), cases: Sequence[Case] = ()) -> Verdict:
        """Returns whether a program passes every test and every case; it stops at the first failure.

        Args:
            program: Python source. For tests it is loaded as the module `solution`; for cases it runs as `__main__`.
            tests: Python source with asserts, executed in one namespace that has the program's names. Plain data
                passes between tests and program by value: see docs/sandbox.md.
            cases: inputs and expected outputs; blanks at line ends and empty lines at the end are ignored.

        Raises:
            ValueError: there are neither tests nor cases, so every program would pass.
            SandboxBroken: the sandbox itself could not be made, or was killed or closed.
        """
        if not tests and not cases:
            raise ValueError("a check has neither tests nor cases")
        started = time.monotonic()
        reason, detail = self._run_tests(program, tests) if tests else ("passed", "")
        if cases and reason == "passed":
            reason, detail = self._run_cases(program, cases)
        return Verdict(passed=reason == "passed", reason=reason, detail=detail, seconds=time.monotonic() - started)

    def session(self) -> Session:
        """Starts an interpreter that keeps its state from cell to cell; `limits.wall_seconds` applies to each cell."""
        session = LocalSession(lambda: self._start_process("cells", {"files": {}}, None), self.limits)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Ends all running programs and removes the copied Python. It may be called more than once."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()  # the thread that runs it then closes it
        for session in list(self._sessions):
            session.close()
        deadline = time.monotonic() + 60
        while self._num_used and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            for slot in self._free:
                slot.close()
            self._free = []
        self._image.close()

    # ------------------------------------------------------------------ one program

    def _run_with_retries(
        self, mode: str, job: Mapping[str, Any], stdin: str, *, channel_bytes: int = 0, seconds: float | None = None
    ) -> "_Outcome":
        """Runs a sandbox from its start to its end; retries if it breaks, as it can on a busy machine."""
        for pause in (0.1, 1.0):
            try:
                return self._run_once(mode, job, stdin, channel_bytes, seconds or self.limits.wall_seconds)
            except SandboxBroken:
                if self._closed:
                    raise
                time.sleep(pause)
        return self._run_once(mode, job, stdin, channel_bytes, seconds or self.limits.wall_seconds)

    def _run_once(
        self, mode: str, job: Mapping[str, Any], stdin: str, channel_bytes: int, wall_seconds: float
    ) -> "_Outcome":
        with self._start_process(mode, job, stdin) as process:
            limit = self.limits.output_bytes
            pipes = {"stdout": LimitedPipe(process.stdout, limit), "stderr": LimitedPipe(process.stderr, limit)}
            channel = pipes["channel"] = LimitedPipe(process.channel, len(STARTED) + channel_bytes)
            cause = read_until_end(process, list(pipes.values()), channel, wall_seconds)
            out_of_memory = process.end()
            for pipe in pipes.values():
                pipe.read()
            stderr = bytes(pipes["stderr"].content)
            if self._closed:
                raise SandboxBroken("the sandbox was closed")
            if not channel.content.startswith(STARTED) and not out_of_memory:
                reason = stderr.decode(errors="replace").strip()[-500:] or f"no start within {START_SECONDS:.0f} s"
                raise SandboxBroken(f"the sandbox could not be made: {reason}")
            if not (cause or out_of_memory) and process.was_killed(self.limits.cpu_seconds, has_judge=mode != "run"):
                raise SandboxBroken("the sandbox was killed from outside, for example by the kernel's OOM killer")
            return _Outcome(
                stdout=bytes(pipes["stdout"].content),
                stderr=stderr,
                channel=bytes(channel.content[len(STARTED) :]),
                exit_code=None if cause else process.exit_code(),
                cause=cause,
                out_of_memory=out_of_memory,
                seconds=process.seconds,
            )

    def _run_tests(self, program: str, tests: Sequence[str]) -> tuple[Reason, str]:
        nonce = secrets.token_hex(16)
        job = {"program": program, "tests": list(tests), "nonce": nonce}
        outcome = self._run_with_retries("tests", job, "", channel_bytes=_VERDICT_BYTES)
        if outcome.cause:
            return outcome.cause, f"stopped by the limit: {outcome.cause}"
        found = _parse_message(outcome.channel, nonce)
        if found.get("reason") == "passed":
            return "passed", ""
        if outcome.out_of_memory:
            return "memory", "killed: out of memory"
        if not found:
            return "crash", f"the judge was killed by the program or crashed (exit code {outcome.exit_code})"
        reason = found.get("reason")
        return (reason if reason in ("failed", "time", "memory") else "error"), str(found.get("detail"))

    def _run_cases(self, program: str, cases: Sequence[Case]) -> tuple[Reason, str]:
        nonce = secrets.token_hex(16)
        # as much as all cases expect, and what one may print too much: a hostile program cannot fill the memory here
        expected = [len(case.stdout.encode(errors="replace")) for case in cases]
        total_bytes = self.limits.output_bytes + sum(expected)
        job = {
            "program": program,
            "inputs": [case.stdin for case in cases],  # the expected outputs stay out of the sandbox
            "nonce": nonce,
            "output_bytes": self.limits.output_bytes + max(expected),
            "error_bytes": self.limits.output_bytes,
            "total_bytes": total_bytes,
        }
        channel_bytes = _VERDICT_BYTES + 8 * total_bytes + 128 * len(cases)  # room for JSON escapes
        outcome = self._run_with_retries("cases", job, "", channel_bytes=channel_bytes)
        lines = outcome.channel.splitlines()
        for number, case in enumerate(cases, start=1):
            found = _parse_message(lines[number - 1], nonce) if number <= len(lines) else {}
            reason, detail = _judge_case(found, case, outcome)
            if reason != "passed":
                return reason, f"case {number}: {detail}"
        return "passed", ""

    # ------------------------------------------------------------------ processes and slots

    @contextlib.contextmanager
    def _start_process(self, mode: str, job: Mapping[str, Any], stdin: str | None) -> Iterator[SandboxProcess]:
        with self._slot() as slot:
            parts = (self._bubblewrap, self._image, slot.user, slot.cgroup, self.limits)
            try:
                process = SandboxProcess(*parts, mode, job, stdin)
            except OSError as error:  # no process or file descriptor is left on a busy machine
                raise SandboxBroken(f"the sandbox could not be made: {error}") from error
            try:
                with self._lock:
                    self._running.add(process)
                    if self._closed:
                        process.kill()
                yield process
            finally:
                with self._lock:
                    self._running.discard(process)
                process.end()
                process.close()

    @contextlib.contextmanager
    def _slot(self) -> Iterator["_Slot"]:
        """Provides a user id and a cgroup for one sandbox at a time."""
        with self._lock:
            if self._closed:
                raise SandboxBroken("the sandbox is closed")
            slot = self._free.pop() if self._free else None
            self._num_used += 1
        try:
            slot = slot or _Slot(self._cgroups, self.limits)
            yield slot
        finally:
            with self._lock:
                self._num_used -= 1
                if slot is not None:
                    self._free.append(slot)


class _Slot:
    """The user id and the cgroup of one sandbox at a time; the next sandbox reuses them."""

    def __init__(self, cgroups: Cgroups, limits: Limits) -> None:
        self.user = SandboxUser()
        # bubblewrap, the sandbox's init and the judge are in the cgroup too
        self.cgroup = cgroups.make(f"{id(self):x}", limits.memory_bytes + _OVERHEAD_BYTES, limits.processes + 4)

    def close(self) -> None:
        self.user.close()
        self.cgroup.close()


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The output and the end of a sandbox. `cause` is the limit that stopped it."""

    stdout: bytes
    stderr: bytes
    channel: bytes
    exit_code: int | None
    cause: Literal["time", "output"] | None
    out_of_memory: bool
    seconds: float

    def end_reason(self, limits: Limits) -> EndReason:
        """Returns how the program ended, as far as this can be known: a program can always fake another ending."""
        if self.cause:
            return self.cause
        if self.exit_code == 0:
            return "ok"
        if self.out_of_memory or self.stderr.rstrip().rpartition(b"\n")[2].startswith(b"MemoryError"):
            return "memory"
        killed = self.exit_code == 128 + signal.SIGKILL and self.seconds >= limits.cpu_seconds
        if self.exit_code == 128 + signal.SIGXCPU or killed:
            return "time"
        return "crash" if self.exit_code is None or self.exit_code > 128 else "error"


def _judge_case(found: dict[str, Any], case: Case, outcome: _Outcome) -> tuple[Reason, str]:
    exit_code = found.get("exit_code")
    if found and exit_code == 0 and found.get("is_whole"):
        if _split_lines(str(found.get("stdout"))) == _split_lines(case.stdout):
            return "passed", ""
        return "failed", f"printed {str(found.get('stdout'))[:200]!r}"
    if outcome.cause:
        return outcome.cause, f"stopped by the limit: {outcome.cause}"
    if found and not found.get("is_whole"):
        return "output", "more output than the limit"
    if outcome.out_of_memory:
        return "memory", "killed: out of memory"
    if not found:
        return "crash", f"the judge was killed by the program or crashed (exit code {outcome.exit_code})"
    last = outcome.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if exit_code == -signal.SIGXCPU:
        return "time", "the limit on CPU seconds"
    return ("memory" if last.startswith("MemoryError") else "error"), f"exit code {exit_code}: {last[:500]}"


def _parse_message(line: bytes, nonce: str) -> dict[str, Any]:
    """Parses a message of the trusted code inside; returns {} if the line is not one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    is_ours = isinstance(found, dict) and secrets.compare_digest(str(found.get("nonce")).encode(), nonce.encode())
    return found if is_ours else {}


def _split_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]  # str.splitlines would break lines at form feeds too
