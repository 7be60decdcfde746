"""Modes, timers and signals that code of the user leaves behind for the trainer."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.reward.protocol import checked_score

_modes = ExitStack()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Puts back what a test changes; pytest has a timer of its own."""
    timer, handler = signal.setitimer(signal.ITIMER_REAL, 0), signal.getsignal(signal.SIGCHLD)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    _modes.close()
    torch.set_grad_enabled(True)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGCHLD, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: torch.set_grad_enabled(False), r"score has changed torch's gradient mode from True to False.*no_grad"),
        (
            lambda: _modes.enter_context(torch.inference_mode()),
            r"score has changed torch's inference mode from False to True, for the trainer too: let it use",
        ),
        (
            lambda: _modes.enter_context(torch.autocast("cpu", dtype=torch.bfloat16)),
            r"score has changed torch's autocast from False to True.*: let it use `with torch.autocast",
        ),
        (lambda: signal.alarm(1000), r"score has left a timer .*: let it call signal.setitimer\(signal.ITIMER_REAL, 0"),
        (lambda: signal.setitimer(signal.ITIMER_REAL, 1000, 1), r"score has left a timer \(signal.alarm or"),
        (
            lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT}),
            r"score has blocked SIGINT, SIGTERM, for the trainer too",
        ),
        (
            lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
            r"score has changed the handler of SIGCHLD, with which the trainer waits for its processes: let it restore",
        ),
    ],
)
def test_what_a_reward_leaves_behind(change, message) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(UserError, match=message):
        checked_score(SimpleNamespace(score=lambda *_: change()), [], [])
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


def test_what_a_reward_uses_and_ends() -> None:
    def score(*_: object) -> list[dict[str, float]]:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            signal.alarm(1000)
            signal.alarm(0)
        return []

    assert checked_score(SimpleNamespace(score=score), [], []) == []


def test_a_timer_of_the_program_around_is_not_the_rewards() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    assert checked_score(SimpleNamespace(score=lambda *_: []), [], []) == []
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
