"""CodeAct: the policy acts by writing Python, and sees what it prints (Wang et al., ICML 2024, arXiv 2402.01030)."""

import contextlib
import os
import re
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.sandbox.probe import open_sandbox
from megatron_sspo.sandbox.types import Runner, SandboxBroken, Session
from megatron_sspo.types import Prompt

_EXECUTE = re.compile(r"<execute>((?:(?!</?execute>).)*)</execute>", re.DOTALL)
_SOLUTION = re.compile(r"<solution>(?:(?!</?solution>).)*</solution>", re.DOTALL)
_FENCED = re.compile(r"\s*```[^\n`]*\n(.*?)```\s*", re.DOTALL)
_LOOK_SECONDS = 0.1
_NOTHING = "[nothing was printed]"
_NEITHER = (
    "Your message has neither code nor a solution. To run code, write <execute> code </execute>. To end, write "
    "<solution> solution </solution>."
)


def environment(
    max_turns: int = 5,
    max_characters: int = 2000,
    concurrency: int = 0,
    max_episodes: int = 128,
    limits: Mapping[str, Any] | None = None,
    url: str = "",
    python: str = "",
    packages: Sequence[str] = (),
    cgroup: str = "",
) -> "CodeAct":
    """Builds the environment. Without a sandbox that withstands its probe there is none.

    Args:
        max_turns: of a rollout; with the last one it ends, whatever that turn says.
        max_characters: of an observation; of a longer one the middle is left out.
        concurrency: cells that run at a time; 0 takes as many as there are cores.
        max_episodes: interpreters at a time, each with processes of its own.
        limits: of each cell: fields of `megatron_sspo.sandbox.types.Limits`, such as {"wall_seconds": 5.0}.
        url: of a sandbox on another machine, in place of this one's.
        python, packages, cgroup: see `megatron_sspo.sandbox.sandbox.Sandbox`.

    Raises:
        UserError: a number has no meaning, or the sandbox is missing or lets something through.
    """
    numbers = {"max_turns": max_turns, "max_characters": max_characters, "max_episodes": max_episodes}
    for name, value in numbers.items():
        if value < 1:
            raise UserError(f"rollouts.environment_options.{name} is {value}: it has to be 1 or more")
    if concurrency < 0:
        raise UserError(f"rollouts.environment_options.concurrency is {concurrency}: it has to be 0 or more")
    runner = open_sandbox(limits, url=url, python=python, packages=packages, cgroup=cgroup)
    return CodeAct(runner, concurrency or os.cpu_count() or 1, max_turns, max_characters, max_episodes)


class CodeAct:
    """A turn with `<execute> code </execute>` runs a cell, one with `<solution> ... </solution>` ends the rollout.

    The cells of a rollout share an interpreter, in a sandbox, which is started with the first of them. Code may stand
    in a fenced block. A turn with neither is told so, and has cost a turn. An interpreter that is taken down by its
    code stays down; the observations say so.

    Args:
        runner: closed with the environment.
        concurrency: cells that run at a time.
        max_turns, max_characters, max_episodes: see `environment`.
    """

    stop = ("</execute>", "</solution>")

    def __init__(
        self, runner: Runner, concurrency: int, max_turns: int, max_characters: int, max_episodes: int
    ) -> None:
        self.max_episodes = max_episodes
        self.max_turns = max_turns
        self._runner = runner
        self._free = threading.Semaphore(concurrency)
        self._max_characters = max_characters
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def open(self, prompt: Prompt) -> "CodeActEpisode":
        """An episode. The prompt does not matter: the interpreter starts empty."""
        self.count("episodes")
        return CodeActEpisode(self)

    def start(self, is_wanted: Callable[[], bool]) -> Session | None:
        """A fresh interpreter that answers; None where it is not wanted any more when its turn comes.

        Raises:
            UserError: the sandbox is broken.
        """
        for pause in (0.1, 1.0, None):  # once more where a busy machine could not make one
            with self._place(is_wanted) as has_place:
                if not has_place:
                    return None
                try:
                    session = self._runner.session()
                    try:
                        session.execute("")
                    except BaseException:
                        session.close()
                        raise
                    self.count("sessions")
                    return session
                except SandboxBroken as error:
                    if pause is None:
                        raise UserError(f"no interpreter can be started for a rollout: {error}") from error
            time.sleep(pause)
        raise AssertionError

    def execute(self, session: Session, code: str, is_wanted: Callable[[], bool]) -> str | None:
        """The observation of a cell; None where it is not wanted any more when its turn comes.

        Raises:
            UserError: the sandbox is broken.
        """
        was_alive = session.is_alive
        with self._place(is_wanted) as has_place:
            if not has_place:
                return None
            try:
                printed = session.execute(code)
            except SandboxBroken as error:
                raise UserError(f"the interpreter of a rollout is lost: {error}") from error
        self.count("cells")
        if was_alive and not session.is_alive:
            self.count("sessions_ended_early")
        return "Observation:\n" + (self._shortened(printed.strip()) or _NOTHING)

    def count(self, what: str) -> None:
        """One more of it."""
        with self._lock:
            self._counts[what] += 1

    def metrics(self) -> dict[str, float]:
        """Cells an episode, and the share of the interpreters that were taken down by their code."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts["episodes"]:
            return {}
        return {
            "cells_per_episode": counts["cells"] / counts["episodes"],
            "sessions_ended_early": counts["sessions_ended_early"] / max(1, counts["sessions"]),
        }

    def close(self) -> None:
        """Ends the sandboxes."""
        self._runner.close()

    @contextlib.contextmanager
    def _place(self, is_wanted: Callable[[], bool]) -> Iterator[bool]:
        """One of the places in which cells run, waited for while it is wanted; whether there is one."""
        has_place = False
        while is_wanted() and not (has_place := self._free.acquire(timeout=_LOOK_SECONDS)):
            pass
        try:
            yield has_place
        finally:
            if has_place:
                self._free.release()

    def _shortened(self, text: str) -> str:
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
            return _NEITHER
        if self._session is None and not self._start():
            return None
        assert self._session is not None
        return self._environment.execute(self._session, code, self._is_open)

    def close(self) -> None:
        """Ends the interpreter."""
        with self._lock:
            self._closed = True
            session = self._session
        if session is not None:
            with contextlib.suppress(SandboxBroken):  # a server that is away ends it by itself
                session.close()

    def _start(self) -> bool:
        """Whether there is an interpreter now: there is none for an episode that was closed meanwhile."""
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
    """The code of the last `<execute> ... </execute>`, without a fence around it; None without such a pair."""
    cells = _EXECUTE.findall(response)
    if not cells:
        return None
    fenced = _FENCED.fullmatch(cells[-1])
    return textwrap.dedent(fenced[1] if fenced else cells[-1]).strip()
