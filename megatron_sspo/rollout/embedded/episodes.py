"""The episodes of a batch of rollouts whose turns run in lockstep."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.environment.protocol import Environment, Episode, open_episode
from megatron_sspo.types import Prompt


class OpenEpisodes:
    """A context manager that closes its episodes, one per prompt and at most `environment.max_episodes`, at its end."""

    def __init__(self, environment: Environment, prompts: Sequence[Prompt]) -> None:
        self._environment = environment
        self._prompts = prompts
        self._open: dict[int, Episode] = {}
        self._threads = ThreadPoolExecutor(max(1, len(prompts)), thread_name_prefix="environment")

    def __enter__(self) -> "OpenEpisodes":
        return self

    def __exit__(self, *_: Any) -> None:
        with user_code_errors("the environment"), ExitStack() as stack:  # which closes the others after an error too
            for episode in self._open.values():  # first, so that `observe` calls end and the threads can be joined
                stack.callback(episode.close)
        self._threads.shutdown(cancel_futures=True)

    def observe(self, responses: Mapping[int, str]) -> dict[int, str | None]:
        """Returns the observations of some of the rollouts, by index. They run concurrently.

        Raises:
            UserError: the environment is broken.
        """
        with user_code_errors("the environment"):
            for place in responses:
                if place not in self._open:
                    self._open[place] = open_episode(self._environment, self._prompts[place])
            work = [self._threads.submit(self._open[place].observe, text) for place, text in responses.items()]
            found = {place: one.result() for place, one in zip(responses, work, strict=True)}
            for place, observation in found.items():
                if observation is None:
                    self._open.pop(place).close()
        return found
