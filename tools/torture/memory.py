"""Records the memory of each process of a run over time."""

import contextlib
import json
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tools.torture.processes import Processes, role_of

_EVERY_SECONDS = 2.0
_TRAINERS = ("launcher", "rank 0", "rank 1")
_ROLES = (*_TRAINERS, "serve", "server", "scheduler", "detokenizer", "router")
_SETTLED_SECONDS = 45.0  # the age at which a server has finished its start
_SETTLED_UPDATES = 3  # the number of updates in an attempt after which a trainer has finished its start
FEWEST = 16  # the smallest number of samples of a process that counts


@dataclass(frozen=True)
class Sample:
    """One process at one moment: `resident` bytes, and `anonymous` bytes, which no file backs."""

    seconds: float
    phase: str
    role: str
    pid: int
    updates: int  # updates so far in its attempt
    age: float
    resident: int
    anonymous: int

    @property
    def is_settled(self) -> bool:
        """True if the process has finished its start."""
        if self.role in _TRAINERS:
            return self.updates >= _SETTLED_UPDATES
        return self.age >= _SETTLED_SECONDS


class Recorder:
    """A recorder that takes samples in a thread until `close`, and writes each at once.

    Args:
        processes: the processes of the run.
        path: the file to write.
        now: a function that returns the kind of the phase and the number of updates in the current attempt.
    """

    def __init__(self, processes: Processes, path: Path, now: Callable[[], tuple[str, int]]) -> None:
        self._processes, self._path, self._now = processes, path, now
        self.samples: list[Sample] = []
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops sampling."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            found = self._take_samples()
            self.samples += found
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(sample)) + "\n" for sample in found)

    def _take_samples(self) -> list[Sample]:
        phase, updates = self._now()
        found = []
        for process in self._processes.alive():
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                role = role_of(process)
                if role in _ROLES:
                    resident, anonymous = _bytes_of(process.pid)
                    age = time.time() - process.create_time()
                    seconds = time.monotonic() - self._began
                    found.append(Sample(seconds, phase, role, process.pid, updates, age, resident, anonymous))
        return found


def _bytes_of(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    numbers = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return numbers["Rss"], numbers["Anonymous"]


@dataclass(frozen=True)
class Flatness:
    """The memory of a role's processes in a kind of run, from settled samples of processes that lived long enough."""

    phase: str
    role: str
    num_samples: int
    num_processes: int
    largest_resident: int
    second_quarter: float  # mean anonymous bytes
    last_quarter: float

    @property
    def ratio(self) -> float:
        """The mean of the last quarter divided by that of the second quarter; 1 is flat."""
        return self.last_quarter / self.second_quarter


def flatness(samples: Sequence[Sample]) -> list[Flatness]:
    """Returns the flatness of each role in each kind of run, for processes with enough samples.

    Two processes of a role may differ by some percent from the start, so attempts are not compared with each other: the
    settled samples of each process are divided into quarters, and the means are taken over processes. A trainer's
    samples after the last update of its attempt do not count: it may export the model and draw the curves then.
    """
    rows: Mapping[tuple[str, str], dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        if sample.is_settled:
            rows[_where(sample), sample.role][sample.pid].append(sample)
    found = []
    for (phase, role), by_process in sorted(rows.items()):
        rows_before_the_end = [_before_the_end(row) for row in by_process.values()]
        long = [row for row in rows_before_the_end if len(row) >= FEWEST]
        second = [sample for row in long for sample in row[len(row) // 4 : len(row) // 4 * 2]]
        last = [sample for row in long for sample in row[-(len(row) // 4) :]]
        if long:
            found.append(
                Flatness(
                    phase=phase,
                    role=role,
                    num_samples=sum(map(len, long)),
                    num_processes=len(long),
                    largest_resident=max(sample.resident for row in by_process.values() for sample in row),
                    second_quarter=statistics.fmean(sample.anonymous for sample in second),
                    last_quarter=statistics.fmean(sample.anonymous for sample in last),
                )
            )
    return found


def _before_the_end(row: Sequence[Sample]) -> Sequence[Sample]:
    if row[0].role not in _TRAINERS:
        return row
    return [sample for sample in row if sample.updates < row[-1].updates]


def _where(sample: Sample) -> str:
    """Returns the kind of run of a process; servers that outlive runs count as "outside" in all of them."""
    is_trainer = sample.role in _TRAINERS
    return sample.phase if is_trainer or sample.phase == "own" else "outside"


def largest_by_hour(samples: Sequence[Sample]) -> dict[tuple[int, str], int]:
    """Returns (hour from 0, role) -> the largest number of resident bytes of one process."""
    found: dict[tuple[int, str], int] = defaultdict(int)
    for sample in samples:
        key = int(sample.seconds // 3600), sample.role
        found[key] = max(found[key], sample.resident)
    return dict(sorted(found.items()))
