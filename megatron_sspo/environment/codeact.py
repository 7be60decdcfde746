"""CodeAct: the policy acts by writing Python and observes its output (Wang et al., ICML 2024, arXiv 2402.01030)."""

import contextlib
import re
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megatron_sspo.config.kinds import Amount, Count
from megatron_sspo.errors import UserError
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.reward.code import sandbox_errors
from megatron_sspo.types import Prompt
from sspo_sandbox import Runner, SandboxBroken, SandboxError, Session, open_sandbox
from sspo_sandbox.probe import check_options

_EXECUTE = re.compile(r"<execute>((?:(?!</?execute>).)*)</execute>", re.DOTALL)
_SOLUTION = re.compile(r"<solution>(?:(?!</?solution>).)*</solution>", re.DOTALL)
_FENCED = re.compile(r"\s*```[^\n`]*\n(.*?)```\s*", re.DOTALL)
_OWN_OPTIONS = ("max_turns", "max_characters", "concurrency", "max_episodes")  # all others are the sandbox's
_POLL_SECONDS = 0.1
_RETRY_PAUSES = (0.1, 1.0)  # seconds between attempts at a start, which may fail on a busy machine
_NO_OUTPUT = "[nothing was printed]"
_NO_ACTION_MESSAGE = (
    "Your message has neither code nor a solution. To run code, write <execute> code </execute>. To end, write "
    "<solution> solution </solution>."
)


def environment(
    max_turns: Count = 5,
    max_characters: Count = 2000,
    concurrency: Amount = 0,
    max_episodes: Count = 128,
    limits: Mapping[str, Any] | None = None,
    url: str = "",
    python: str = "",
    packages: Sequence[str] = (),
    cgroup: str = "",
) -> "CodeAct":
    """Builds the environment. It requires a sandbox that passes its probe.

    Args:
        max_turns: the largest number of turns of a rollout, which ends after the last one in any case.
        max_characters: the largest number of characters of an observation; the middle of a longer one is omitted.
        concurrency: number of cells that run at the same time; 0 takes the number of cores that this process may use.
        max_episodes: number of interpreters at the same time, each with its own processes.
        limits: limits of each cell: fields of `sspo_sandbox.Limits`, such as {"wall_seconds": 5.0}.
        url: address of a sandbox on another machine; "" takes one on this machine.
        python, packages, cgroup: see `sspo_sandbox.Sandbox`.

    Raises:
        UserError: an option of the sandbox is invalid, or it is missing or fails its probe.
    """
    with sandbox_errors():
        runner = open_sandbox(limits, url=url, python=python, packages=packages, cgroup=cgroup)
    return CodeAct(runner, concurrency or num_cores(), max_turns, max_characters, max_episodes)


def check_values(**options: Any) -> None:
    """Raises UserError for options of the sandbox that are invalid or contradict each other, on any machine."""
    with sandbox_errors():
        check_options(**{name: value for name, value in options.items() if name not in _OWN_OPTIONS})


class CodeAct:
    """An environment in which `<execute> code </execute>` runs a cell and `<solution> ... </solution>` ends a rollout.

    The cells of a rollout share one sandboxed interpreter, which starts with the first cell. Code may be in a fenced
    block. The observation of a turn with neither tag says so; the turn counts. An interpreter that its code terminates
    is not restarted; the observations say so.

    The sandbox, `runner`, is closed with the environment.
    """

    stop = ("</execute>", "</solution>")

    def __init__(
        self, runner: Runner, concurrency: int, max_turns: int, max_characters: int, max_episodes: int
    ) -> None:
        self.max_episodes = max_episodes
        self.max_turns = max_turns
        self._runner = runner
        self._slots = threading.Semaphore(concurrency)
        self._max_characters = max_characters
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def open(self, prompt: Prompt) -> "CodeActEpisode":
        """Opens an episode. The prompt is not used: the interpreter starts empty."""
        self.count("episodes")
        return CodeActEpisode(self)

    def start(self, is_needed: Callable[[], bool]) -> Session | None:
        """Returns an interpreter that responds; None if it is no longer needed when a slot is free."""
        for pause in (*_RETRY_PAUSES, None):
            with self._slot(is_needed) as has_slot:
                if not has_slot:
                    break
                try:
                    return self._new_session()
                except SandboxError as error:
                    if pause is None:
                        raise UserError(f"no interpreter can be started for a rollout: {error}") from error
            time.sleep(pause)
        return None

    def execute(self, session: Session, code: str, is_needed: Callable[[], bool]) -> str | None:
        """Runs a cell and returns its observation; None if the cell is no longer needed when a slot is free."""
        was_alive = session.is_alive
        with self._slot(is_needed) as has_slot:
            if not has_slot:
                return None
            with sandbox_errors("the interpreter of a rollout failed: "):
                printed = session.execute(code)
        self.count("cells")
        if was_alive and not session.is_alive:
            self.count("sessions_ended_early")
        return "Observation:\n" + (self._shorten(printed.strip()) or _NO_OUTPUT)

    def count(self, what: str) -> None:
        """Increments a counter."""
        with self._lock:
            self._counts[what] += 1

    def metrics(self) -> dict[str, float]:
        """Returns the number of cells per episode, and the share of interpreters that their code terminated."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts["episodes"]:
            return {}
        return {
            "cells_per_episode": counts["cells"] / counts["episodes"],
            "sessions_ended_early": counts["sessions_ended_early"] / max(1, counts["sessions"]),
        }

    def close(self) -> None:
        """Closes the sandbox."""
        self._runner.close()

    def _new_session(self) -> Session:
        session = self._runner.session()
        try:
            session.execute("")
        except BaseException:
            session.close()
            raise
        self.count("sessions")
        return session

    @contextlib.contextmanager
    def _slot(self, is_needed: Callable[[], bool]) -> Iterator[bool]:
        """Waits for one of the slots for cells while the caller needs one; yields whether it has one."""
        has_slot = False
        while is_needed() and not (has_slot := self._slots.acquire(timeout=_POLL_SECONDS)):
            pass
        try:
            yield has_slot
        finally:
            if has_slot:
                self._slots.release()

    def _shorten(self, text: str) -> str:
        left_out = len(text) - self._max_characters
        if left_out <= 0:
            return text
        head = (self._max_characters + 1) // 2
        return f"{text[:head]}\n[{left_out} characters left out]\n{text[head + left_out :]}"


class CodeActEpisode:
    """The turns of one rollout."""

    def __init__(self, environment: CodeAct) -> None:
        self._environment = environment
        self._num_turns = 0
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._closed = False

    def observe(self, response: str) -> str | None:
        """See `Episode.observe`."""
        self._num_turns += 1
        if self._num_turns >= self._environment.max_turns or _SOLUTION.search(response):
            return None
        code = extract_code(response)
        if code is None:
            return _NO_ACTION_MESSAGE
        if self._session is None and not self._start():
            return None
        assert self._session is not None
        return self._environment.execute(self._session, code, self._is_open)

    def close(self) -> None:
        """Closes the interpreter."""
        with self._lock:
            self._closed = True
            session = self._session
        if session is not None:
            with contextlib.suppress(SandboxBroken):  # a sandbox server that is unreachable closes it by itself
                session.close()

    def _start(self) -> bool:
        """Starts the interpreter; returns False if the episode is closed in the meantime."""
        session = self._environment.start(self._is_open)
        if session is None:
            return False
        with self._lock:
            if not self._closed:
                self._session = session
                return True
        session.close()
        return False

    def _is_open(self) -> bool:
        return not self._closed


def extract_code(response: str) -> str | None:
    """Returns the code of the last `<execute> ... </execute>` without its fence; None if there is no such pair."""
    cells = _EXECUTE.findall(response)
    if not cells:
        return None
    fenced = _FENCED.fullmatch(cells[-1])
    code = (fenced[1] if fenced else cells[-1]).lstrip("\n")
    # dedent empties lines of white space, also inside of strings, so it is for code that is indented as a whole
    return (textwrap.dedent(code) if code[:1].isspace() else code).strip()
