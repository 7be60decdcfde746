"""What goes into a sandbox and what comes out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

from megatron_sspo.errors import UserError

MEBIBYTE = 1024**2

# How a program ended. "error" is an exit code other than 0, "crash" a signal, "time" the deadline or the CPU limit.
Ended = Literal["ok", "error", "crash", "time", "memory", "output"]
# How a check ended. "failed" is a test, "error" the program itself, "crash" one that took its judge along.
Reason = Literal["passed", "failed", "error", "time", "memory", "output", "crash"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a sandbox may use. Beyond it a program gets an error or is killed, with everything that it started.

    Raises:
        UserError: a limit that is not above 0.
    """

    wall_seconds: float = 10.0  # then every process of the sandbox is killed
    cpu_seconds: int = 10  # of each process
    memory_bytes: int = 512 * MEBIBYTE  # of each process, and of all together where there is a cgroup for it
    processes: int = 32  # threads count
    output_bytes: int = MEBIBYTE  # stdout, and as much again of stderr
    disk_bytes: int = 64 * MEBIBYTE  # all of /tmp; held in memory, so it counts there too
    open_files: int = 128

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Limits":
        """The limits that a user names; plain Python, as a sandbox's server needs no other package.

        Raises:
            UserError: a name or a value is wrong.
        """
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in names]:
            raise UserError(f"the sandbox has no option {', '.join(unknown)}: its options are {', '.join(names)}")
        return cls(**options)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise UserError(f"the sandbox's {field.name} is {value!r}: it has to be a number above 0")
            if field.name != "wall_seconds" and not isinstance(value, int):
                raise UserError(f"the sandbox's {field.name} is {value!r}: it has to be an integer")


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """What a program left."""

    stdout: str
    stderr: str
    exit_code: int | None  # None where it was killed; 128 + n after signal n
    ended: Ended
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program's input and the output that it has to print."""

    stdin: str
    stdout: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a program passed all of its checks."""

    passed: bool
    reason: Reason
    detail: str = ""  # the check that failed and why, for a person to read
    seconds: float = 0.0


class SandboxBroken(RuntimeError):
    """A sandbox could not be made, or not be reached: not the program's fault, and no verdict on it."""


class Session(Protocol):
    """An interpreter that keeps its state from one cell to the next."""

    @property
    def is_alive(self) -> bool:
        """Whether the next cell will be executed."""
        ...

    def execute(self, code: str, seconds: float | None = None) -> str:
        """Runs a cell within its own deadline and gives what a notebook would show: the observation."""
        ...

    def close(self) -> None:
        """Ends the interpreter and all that it started. More than one call does no harm."""
        ...


class Runner(Protocol):
    """Whatever runs programs in a sandbox: `Sandbox` on this machine, `RemoteSandbox` on another one."""

    @property
    def limits(self) -> Limits:
        """Of each program, check and session."""
        ...

    @property
    def limits_memory_of_all(self) -> bool:
        """Whether the limit on memory holds for all processes of a sandbox together."""
        ...

    def run(
        self, program: str, stdin: str = "", files: Mapping[str, str] | None = None, *, seconds: float | None = None
    ) -> SandboxResult:
        """Runs a program to its end or its limits; `seconds` is another deadline than that of the limits."""
        ...

    def check(self, program: str, tests: Sequence[str] = (), cases: Sequence[Case] = ()) -> Verdict:
        """Whether a program passes assert statements and input-output pairs."""
        ...

    def session(self) -> Session:
        """A fresh interpreter."""
        ...

    def close(self) -> None:
        """Ends what still runs, and removes what was set up. More than one call does no harm."""
        ...
