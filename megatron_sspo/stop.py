"""A run that is asked to end early ends after an update, with a checkpoint, on all of its processes alike."""

import signal
import time
from pathlib import Path
from types import FrameType

FILE = "stop"  # in the run's folder: whoever makes it asks
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # what Slurm sends before it takes nodes away
BY_SIGNAL = 85  # exit code: the machine is wanted back, so start the run again later, with --resume
BY_FILE = 86  # exit code: somebody wanted the run to end here
EXIT_CODES = (BY_SIGNAL, BY_FILE)


class Stop:
    """Listens for the signals and the file, from when it is made until `close`.

    A signal may reach one process an update earlier than another, so that what is done about it is agreed upon.

    Args:
        folder: the run's.

    Attributes:
        reason: why the run is to end, once that is agreed upon; "" before.
        exit_code: what its processes are to end with then; 0 before.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._signal = 0
        self._asked = 0.0
        self._looked: float | None = None
        self._longest = 0.0
        self.reason, self.exit_code = "", 0
        self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def close(self) -> None:
        """Signals mean again what they meant before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def longest(self) -> float:
        """Seconds, the longest so far from one look to the next: whoever asks is heard no later."""
        return max(self._longest, time.monotonic() - self._looked) if self._looked is not None else 0.0

    def is_agreed(self) -> bool:
        """Whether any process was asked to end. A collective: all hear the same. The file, having asked, is gone."""
        from megatron_sspo.processes import agree  # torch's, and the command line starts without it

        self._longest, self._looked = self.longest, time.monotonic()
        is_main = agree.is_main()
        seconds = self._looked - self._asked if self._signal else 0.0
        found = agree.gather((is_main and self._file.exists(), int(self._signal), seconds))
        by_file, number, seconds = (max(values) for values in zip(*found, strict=True))
        if by_file:
            self.reason, self.exit_code = f"{self._file} was made", BY_FILE
            if is_main:
                self._file.unlink(missing_ok=True)
        elif number:
            self.reason, self.exit_code = f"{signal.Signals(number).name} came {seconds:.1f} s ago", BY_SIGNAL
        return bool(self.exit_code)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._signal:
            self._signal, self._asked = number, time.monotonic()
