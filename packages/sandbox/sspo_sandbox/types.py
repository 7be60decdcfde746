"""The types of the sandbox: limits, results, verdicts, errors."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

MEBIBYTE = 1024**2
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

    Raises SandboxError if one is out of range, or not an integer where it has to be one.
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

        Raises SandboxError if an option is unknown or its value is invalid.
        """
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in names]:
            raise SandboxError(f"the sandbox has no option {', '.join(unknown)}: its options are {', '.join(names)}")
        return cls(**options)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = (int, float) if field.name == "wall_seconds" else (int,)
            if type(value) not in kinds or not 0 < value < 10**15:
                kind = "a number" if float in kinds else "an integer"
                raise SandboxError(f"the sandbox's {field.name} is {str(value)[:80]}: it must be {kind} above 0")


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
