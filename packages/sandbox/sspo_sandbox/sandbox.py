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

from sspo_sandbox.box import START_SECONDS, STARTED, LimitedPipe, SandboxProcess, find_bubblewrap, read_until
from sspo_sandbox.cgroup import Cgroups, Slot
from sspo_sandbox.image import Image
from sspo_sandbox.session import LocalSession
from sspo_sandbox.types import MEBIBYTE, Case, EndReason, Limits, Reason, SandboxBroken, SandboxResult, Verdict

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
        self.has_total_memory_limit = self._cgroups.can_limit_memory  # for all processes of a sandbox together
        self._image = Image(python, packages)
        self._free: list[Slot] = []
        self._num_used = 0
        self._lock = threading.Lock()
        self._running: set[SandboxProcess] = set()
        self._sessions: weakref.WeakSet[LocalSession] = weakref.WeakSet()
        self._closed = False

    def run(self, program: str, stdin: str = "", *, seconds: float | None = None) -> SandboxResult:
        """Runs a program until it ends or reaches a limit.

        Args:
            program: Python source; it runs as `__main__` in its own writable folder.
            stdin: the whole standard input.
            seconds: a deadline that replaces `limits.wall_seconds`.

        Raises:
            SandboxBroken: the sandbox itself could not be made, or was killed or closed.
        """
        outcome = self._run_with_retries("program.run", {"program": program}, stdin, seconds=seconds)
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
        reason, detail = self._run_tests(program, tests) if tests else ("passed", "")
        if cases and reason == "passed":
            reason, detail = self._run_cases(program, cases)
        return Verdict(passed=reason == "passed", reason=reason, detail=detail)

    def session(self) -> LocalSession:
        """Starts an interpreter that keeps its state from cell to cell; `limits.wall_seconds` applies to each cell."""
        session = LocalSession(self._start_process("cells.serve", {}, None), self.limits)
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
        """Runs a sandbox from its start to its end; tries again if it breaks, as it can on a busy machine."""
        for pause in (0.1, 1.0, None):
            try:
                return self._run_once(mode, job, stdin, channel_bytes, seconds or self.limits.wall_seconds)
            except SandboxBroken:
                if self._closed or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError

    def _run_once(
        self, mode: str, job: Mapping[str, Any], stdin: str, channel_bytes: int, wall_seconds: float
    ) -> "_Outcome":
        with self._start_process(mode, job, stdin) as process:
            limit = self.limits.output_bytes
            pipes = {"stdout": LimitedPipe(process.stdout, limit), "stderr": LimitedPipe(process.stderr, limit)}
            channel = pipes["channel"] = LimitedPipe(process.channel, len(STARTED) + channel_bytes)
            end = read_until(process, list(pipes.values()), channel, wall_seconds)
            cause = end if end in ("time", "output") else None
            out_of_memory = process.end()
            for pipe in pipes.values():
                pipe.read()
            stderr = bytes(pipes["stderr"].content)
            if self._closed:
                raise SandboxBroken("the sandbox was closed")
            if not channel.content.startswith(STARTED) and not out_of_memory:
                reason = stderr.decode(errors="replace").strip()[-500:] or f"no start within {START_SECONDS:.0f} s"
                raise SandboxBroken(f"the sandbox could not be made: {reason}")
            if not (cause or out_of_memory) and process.was_killed(
                self.limits.cpu_seconds, has_judge=mode != "program.run"
            ):
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
        outcome = self._run_with_retries("judge.judge", job, "", channel_bytes=_VERDICT_BYTES)
        found = _parse_message(outcome.channel, nonce)
        reason = found.get("reason")
        if reason == "passed" and not outcome.cause:
            return "passed", ""
        if outcome.cause or outcome.out_of_memory or not found:
            return outcome.why_there_is_no_message()
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
        outcome = self._run_with_retries("cases.run_cases", job, "", channel_bytes=channel_bytes)
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
        with self._lock:
            if self._closed:
                raise SandboxBroken("the sandbox is closed")
            slot = self._free.pop() if self._free else None
            self._num_used += 1
        process = None
        try:
            memory_bytes = self.limits.memory_bytes + _OVERHEAD_BYTES
            # bubblewrap, the sandbox's init and the judge are in the cgroup too
            slot = slot or self._cgroups.make_slot(memory_bytes, self.limits.processes + 4)
            try:
                process = SandboxProcess(self._bubblewrap, self._image, slot, self.limits, mode, job, stdin)
            except OSError as error:  # no process or file descriptor is left on a busy machine
                raise SandboxBroken(f"the sandbox could not be made: {error}") from error
            with self._lock:
                self._running.add(process)
                if self._closed:
                    process.kill()
            yield process
        finally:
            if process is not None:
                with self._lock:
                    self._running.discard(process)
                process.end()
                process.close()
            with self._lock:
                self._num_used -= 1
                if slot is not None:
                    self._free.append(slot)


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

    def why_there_is_no_message(self) -> tuple[Reason, str]:
        """Returns the reason and the detail of a verdict on a program that ended the sandbox before its verdict."""
        if self.cause:
            return self.cause, f"stopped by the limit: {self.cause}"
        if self.out_of_memory:
            return "memory", "killed: out of memory"
        return "crash", f"the judge was killed by the program or crashed (exit code {self.exit_code})"

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
    if found and not found.get("is_whole") and not outcome.cause:
        return "output", "more output than the limit"
    if outcome.cause or outcome.out_of_memory or not found:
        return outcome.why_there_is_no_message()
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
