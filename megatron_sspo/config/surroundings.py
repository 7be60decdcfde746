"""Checks that the user's own code leaves what it shares with the trainer as it was: folder, signals, torch's modes."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.processes.stop import SIGNALS
from megatron_sspo.processes.watch.progress import watched_user_call

_TORCH: dict[str, tuple[Callable[[Any], str], str, str]] = {  # how it is read, its value after an import, the remedy
    "default dtype": (
        lambda torch: str(torch.get_default_dtype()),
        "torch.float32",
        "call torch.set_default_dtype again with the former value at its end",
    ),
    "default device": (
        lambda torch: str(torch.get_default_device()),
        "cpu",
        "call torch.set_default_device again with the former value at its end",
    ),
    "inference mode": (
        lambda torch: str(torch.is_inference_mode_enabled()),
        "False",
        "use `with torch.inference_mode():`, which ends by itself",
    ),
    "gradient mode": (
        lambda torch: str(torch.is_grad_enabled()),
        "True",
        "use `with torch.no_grad():`, which ends by itself",
    ),
    "autocast": (
        lambda torch: str(any(map(torch.is_autocast_enabled, ("cpu", "cuda")))),
        "False",
        "use `with torch.autocast(...):`, which ends by itself",
    ),
}
_WATCHED = {
    **dict.fromkeys(SIGNALS, "by which a run is asked to save and end"),
    signal.SIGCHLD: "with which the trainer waits for its processes",
}


@contextmanager
def surroundings_kept(what: str) -> Iterator[None]:
    """A context manager for code that may be the user's and shares the process with the trainer.

    The watchdog limits the time of that code: see `watched_user_call`.

    Raises:
        UserError: something is not as before, with which the trainer would go on: the working folder, where the run's
            relative paths would be other files; torch's default dtype or device, or its gradient, inference or
            autocast mode; a handler of a stop signal that a run has installed, or that of SIGCHLD; a signal that is
            blocked now; or a timer that would interrupt the trainer. Folder, signals and timer are changed back.
    """
    folder, before = _working_folder(), _torch_modes()
    check_signals = _signals_kept(what) if threading.current_thread() is threading.main_thread() else None
    with watched_user_call(what):
        yield
    if check_signals is not None:  # only the main thread can change handlers
        check_signals()
    if folder and (now := _working_folder()) != folder:
        os.chdir(folder)
        raise UserError(
            f"{what} has changed the working folder from {folder} to {now or 'a folder that is gone'}, for the trainer "
            "too: let it use absolute paths, such as Path(__file__).parent / 'name', in place of os.chdir"
        )
    for name, value in _torch_modes().items():
        _, initial, remedy = _TORCH[name]
        if value != (usual := before.get(name, initial)):
            raise UserError(
                f"{what} has changed torch's {name} from {usual} to {value}, for the trainer too: let it {remedy}"
            )


def _signals_kept(what: str) -> Callable[[], None]:
    """Returns a function that checks that handlers, blocked signals and the timer are as they are now."""
    handlers = {number: signal.getsignal(number) for number in _WATCHED}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    has_timer = any(signal.getitimer(signal.ITIMER_REAL))

    def check() -> None:
        if not has_timer and any(signal.getitimer(signal.ITIMER_REAL)):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise UserError(
                f"{what} has left a timer (signal.alarm or signal.setitimer), whose signal would interrupt the "
                "trainer: let it call signal.setitimer(signal.ITIMER_REAL, 0) at its end, also after an exception"
            )
        if newly := (signal.pthread_sigmask(signal.SIG_BLOCK, ()) - blocked) & {*_WATCHED, signal.SIGINT}:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            raise UserError(
                f"{what} has blocked {', '.join(sorted(signal.Signals(number).name for number in newly))}, for the "
                "trainer too: let it call signal.pthread_sigmask again with the former mask at its end"
            )
        for number, handler in handlers.items():
            is_ours = callable(handler) or (number == signal.SIGCHLD and handler is not None)
            if is_ours and signal.getsignal(number) != handler:
                signal.signal(number, handler)
                raise UserError(
                    f"{what} has changed the handler of {number.name}, {_WATCHED[number]}: let it "
                    "restore the former handler at its end"
                )

    return check


def _working_folder() -> str:
    """Returns the working folder; "" if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _torch_modes() -> dict[str, str]:
    """Returns torch's modes by name, those of this thread; nothing if torch is not imported."""
    torch: Any = sys.modules.get("torch")
    return {} if torch is None else {name: read(torch) for name, (read, *_) in _TORCH.items()}
