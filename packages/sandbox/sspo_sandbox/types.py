"""The types of the sandbox: limits, results, verdicts, and the interfaces of runners and sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

MEBIBYTE = 1024**2
_LARGEST = {"wall_seconds": 10**6, "processes": 10**6}  # the kernel accepts no more of poll, and of pids.max
_LARGEST_OF_OTHERS = 10**15

# How a program ended. "error" is an exit code other than 0, "crash" a signal, "time" the deadline or the CPU limit.
EndReason = Literal["ok", "error", "crash", "time", "memory", "output"]
# How a check ended. "failed": a test failed. "error": the program itself failed. "crash": it also ended the judge.
Reason = Literal["passed", "failed", "error", "time", "memory", "output", "crash"]


class SandboxError(Exception):
    """An error that the user can fix. The message is one sentence: the problem, where it is, and the remedy."""


class SandboxBroken(SandboxError):
    """Raised if a sandbox cannot be made or reached, or is killed from outside. It is no verdict on the program."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a sandbox. A program that exceeds one gets an error, or is killed with all that it started.

    Raises:
        SandboxError: a limit is out of range, or not an integer where it has to be one.
    """

    wall_seconds: float = 10.0  # after that, every process of the sandbox is killed
    cpu_seconds: int = 10  # for each process
    memory_bytes: int = 512 * MEBIBYTE  # for each process; for all together if there is a cgroup
    processes: int = 32  # threads count as processes
    output_bytes: int = MEBIBYTE  # for stdout, and as much again for stderr
    disk_bytes: int = 64 * MEBIBYTE  # for all of /tmp, a tmpfs, so it counts as memory too
    open_files: int = 128

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Limits":
        """Builds the limits from a user's options. It uses plain Python, since the server needs no other package.

        Raises:
            SandboxError: an option is unknown or its value is invalid.
        """
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in names]:
            raise SandboxError(f"the sandbox has no option {', '.join(unknown)}: its options are {', '.join(names)}")
        return cls(**options)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            largest = _LARGEST.get(field.name, _LARGEST_OF_OTHERS)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= largest:
                raise SandboxError(
                    f"the sandbox's {field.name} is {str(value)[:80]}: it must be a number above 0 and at most "
                    f"{largest:,}"
                )
            if field.name != "wall_seconds" and not isinstance(value, int):
                raise SandboxError(f"the sandbox's {field.name} is {value!r}: it must be an integer")


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """The output of a program, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int | None  # None if the sandbox was killed; 128 + n after signal n
    end_reason: EndReason
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program's input and the output that it has to print."""

    stdin: str
    stdout: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a check: whether the program passed, and why."""

    passed: bool
    reason: Reason
    detail: str = ""  # the check that failed and why, for a person to read
    seconds: float = 0.0


class Session(Protocol):
    """An interpreter that keeps its state from one cell to the next."""

    @property
    def is_alive(self) -> bool:
        """Returns whether the next cell will be executed."""
        ...

    def execute(self, code: str, seconds: float | None = None) -> str:
        """Runs a cell within its deadline and returns the observation: what a notebook would show."""
        ...

    def close(self) -> None:
        """Ends the interpreter and all processes that it started. It may be called more than once."""
        ...


class Runner(Protocol):
    """Runs programs in a sandbox: `Sandbox` on this machine, `RemoteSandbox` on another one."""

    @property
    def limits(self) -> Limits:
        """Returns the limits of each program, check and session."""
        ...

    @property
    def has_total_memory_limit(self) -> bool:
        """Returns whether the memory limit applies to all processes of a sandbox together."""
        ...

    def run(
        self, program: str, stdin: str = "", files: Mapping[str, str] | None = None, *, seconds: float | None = None
    ) -> SandboxResult:
        """Runs a program until it ends or reaches a limit; `seconds` replaces `limits.wall_seconds`."""
        ...

    def check(self, program: str, tests: Sequence[str] = (), cases: Sequence[Case] = ()) -> Verdict:
        """Returns whether a program passes assert statements and input-output pairs."""
        ...

    def session(self) -> Session:
        """Starts a fresh interpreter."""
        ...

    def close(self) -> None:
        """Ends all running programs and removes what was set up. It may be called more than once."""
        ...
