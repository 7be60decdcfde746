"""Functions that the pool's tests run in its workers. It imports nothing heavy, as a worker's module should."""

import os
import signal
import sys
import time
from typing import Any


def work(item: tuple[str, Any]) -> Any:
    """Does what the item says."""
    verb, value = item
    if verb == "sleep":
        time.sleep(value)
    elif verb == "compute":  # holds the interpreter lock, so that only a signal from outside ends it
        9 ** (9**value)
    elif verb == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif verb == "raise":
        raise ValueError(value)
    elif verb == "pid":
        return os.getpid()
    elif verb == "write pid and sleep":
        with open(value, "w") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    elif verb == "modules":
        return [name for name in value if name in sys.modules]
    return value


def slow_start() -> None:
    time.sleep(1.5)


def failing_start() -> None:
    raise ImportError("no module named sympathy")
