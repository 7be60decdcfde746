"""The interface between a rollout engine and an environment."""

from collections.abc import Sequence
from typing import Protocol

from megatron_sspo.config.resolve import check_members
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.types import Prompt


class Episode(Protocol):
    """The state of one rollout in an environment."""

    def observe(self, response: str) -> str | None:
        """Returns the observation that follows a turn of the policy; None ends the rollout.

        It is called once per turn, in order, from any thread. It is not called for a response that was cut at the
        token limit. It must return in bounded time.

        Args:
            response: the decoded turn alone, with the stop string that ended it.

        Raises:
            UserError: the environment itself is broken; a fault of the response must not raise.
        """
        ...

    def close(self) -> None:
        """Releases the episode's resources.

        It may be called while `observe` runs in another thread; `observe` then returns soon, and its result is not
        used. It may be called several times.
        """
        ...


class Environment(Protocol):
    """A factory of episodes. `megatron_sspo/environment/<name>.py` defines `environment(**options)`, which builds one.

    The environment limits the number of turns: it ends a rollout when `observe` returns None. The token limit
    `sampling.max_tokens` applies to the whole rollout, including observations.
    """

    stop: Sequence[str]
    """Strings that end a turn, in addition to those of the sampling parameters."""

    max_episodes: int
    """The largest number of open episodes; further rollouts wait. `observe` may run in all of them at once."""

    def open(self, prompt: Prompt) -> Episode:
        """Opens an episode for one rollout, after its first turn. It must return at once, without blocking."""
        ...

    def metrics(self) -> dict[str, float]:
        """Returns metrics of this process since the last call, by name; the run logs them as `environment/<name>`."""
        ...

    def close(self) -> None:
        """Closes all episodes, and releases processes and files. It may be called several times."""
        ...


def open_episode(environment: Environment, prompt: Prompt) -> Episode:
    """Opens an episode, and checks that it has what the interface asks for.

    Raises:
        UserError: the environment's own code raises or calls sys.exit, or returns something else than an episode.
    """
    with user_code_errors("the environment"):
        episode = environment.open(prompt)
    check_members(episode, Episode, "the environment's episode")
    return episode
