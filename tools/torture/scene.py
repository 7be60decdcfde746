"""The run and the machine that a fault acts on."""

import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from tools.torture.life import Attempt, Progress
from tools.torture.machine import Disk, Shim
from tools.torture.processes import Processes
from tools.torture.servers import Servers

T = TypeVar("T")


class NotNow(Exception):
    """The target of a fault does not exist now, so another fault is chosen."""


@dataclass
class FaultContext:
    """A run and its machine."""

    phase: str  # embedded, outside, router or own
    random: random.Random
    run: Path  # the run's folder
    disk: Disk
    shim: Shim
    processes: Processes
    progress: Progress
    servers: Servers | None  # the servers that outlive the run
    attempt: Attempt | None = None  # None: the run is down
    num_updates: int = 0
    rendezvous_port: int | None = None  # of the next attempt, if its ranks are to be started one by one
    listener: socket.socket | None = None  # a listener at that port; closed when an attempt has ended because of it

    def one_of(self, *roles: str, seconds: float = 0.0) -> psutil.Process:
        """Returns a process with one of these roles. Raises NotNow if there is none in time."""
        found = self.wait_for(lambda: self.processes.of_role(*roles), seconds, " or ".join(roles))
        return self.random.choice(found)

    def wait_for(self, find: Callable[[], Sequence[T]], seconds: float, what: str) -> Sequence[T]:
        """Calls `find` until it finds something. Raises NotNow after `seconds`, or when the run has ended."""
        deadline = time.monotonic() + seconds
        while not (found := find()):
            if time.monotonic() > deadline or (self.attempt is not None and self.attempt.exit_code() is not None):
                raise NotNow(f"no {what}")
            time.sleep(0.02)
        return found

    def pause(self, shortest: float, longest: float) -> float:
        """Waits for a random time, or until the run ends; returns the chosen time in seconds."""
        seconds = self.random.uniform(shortest, longest)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (self.attempt is None or self.attempt.exit_code() is None):
            time.sleep(0.05)
        return seconds
