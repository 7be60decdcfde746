"""What a fault has at hand."""

import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from tools.torture.life import Life, Progress
from tools.torture.machine import Disk, Shim
from tools.torture.processes import Processes
from tools.torture.servers import Servers

T = TypeVar("T")


class NotNow(Exception):
    """What a fault was to hit is not there: another fault is taken."""


@dataclass
class Scene:
    """A run at work, and the machine under it."""

    phase: str  # embedded, outside, own
    random: random.Random
    run: Path  # its folder
    disk: Disk
    shim: Shim
    processes: Processes
    progress: Progress
    servers: Servers | None  # those that outlive the run
    life: Life | None = None  # None: the run is down
    num_updates: int = 0
    meeting_port: int | None = None  # for the next life, where its ranks are to be started one by one
    listener: socket.socket | None = None  # at that port; closed when a life has met it

    def one_of(self, *roles: str, seconds: float = 0.0) -> psutil.Process:
        """A process of one of these roles. Raises NotNow where none shows up in time."""
        found = self.wait_for(lambda: self.processes.of_role(*roles), seconds, " or ".join(roles))
        return self.random.choice(found)

    def wait_for(self, look: Callable[[], Sequence[T]], seconds: float, what: str) -> Sequence[T]:
        """Looks until something is found. Raises NotNow after that many seconds, or when the run has ended."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            if time.monotonic() > deadline or (self.life is not None and self.life.exit_code() is not None):
                raise NotNow(f"no {what}")
            time.sleep(0.02)
        return found

    def pause(self, shortest: float, longest: float) -> float:
        """Waits for a time that the seed chooses, or until the run ends; returns how long it was to be."""
        seconds = self.random.uniform(shortest, longest)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (self.life is None or self.life.exit_code() is None):
            time.sleep(0.05)
        return seconds
