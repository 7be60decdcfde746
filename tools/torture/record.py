"""The records of each fault and each run."""

from dataclasses import dataclass, field
from typing import Literal

from tools.torture.books import Books

# went on: by itself, in the same life. resumed: by the command that a user or Slurm gives.
Outcome = Literal["went on", "resumed", "hang", "not recovered"]


@dataclass
class FaultRecord:
    """One fault and its outcome."""

    number: int
    kind: str
    phase: str
    moment: str
    seconds_in: float  # since the start of the program
    what: str = ""
    outcome: Outcome = "went on"
    seconds: float = 0.0  # from the fault's end until the run made further updates
    lives: int = 0  # the number of lives until then
    updates_lost: int = 0
    exit_codes: list[int] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)  # the error messages that lives ended with
    tracebacks: int = 0
    processes_left: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Returns the record as one line for the console."""
        parts = [f"{self.kind} ({self.phase}, {self.moment}): {self.what}", f"{self.outcome} in {self.seconds:.1f} s"]
        if self.lives:
            parts.append(f"{self.lives} lives, {self.updates_lost} updates lost")
        parts += [f'"{sentence[:160]}"' for sentence in self.sentences]
        if self.tracebacks:
            parts.append(f"{self.tracebacks} TRACEBACKS")
        if self.processes_left:
            parts.append(f"{len(self.processes_left)} PROCESSES LEFT")
        return "; ".join([*parts, *self.remarks])


@dataclass
class PhaseRecord:
    """The record of one run from its first start to its end."""

    number: int
    kind: str
    num_updates: int
    seconds: float = 0.0
    lives: int = 0
    books: Books | None = None  # None: the run did not finish
    differences: list[str] = field(default_factory=list)  # from the uninterrupted run
    files_left: list[str] = field(default_factory=list)
    processes_left: list[str] = field(default_factory=list)
    error: str = ""
