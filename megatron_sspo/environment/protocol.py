"""What a rollout engine asks of whatever the policy acts in."""

from collections.abc import Sequence
from typing import Protocol

from megatron_sspo.types import Prompt


class Episode(Protocol):
    """One rollout's share of an environment."""

    def observe(self, response: str) -> str | None:
        """What becomes of a turn of the policy: the observation, or None where the rollout ends with it.

        Called for one turn after another, from whichever thread, and not for a response that the limit on tokens cut.
        It has to come back in bounded time.

        Args:
            response: the turn alone, decoded, with the stop string that ended it.

        Raises:
            UserError: the environment itself is broken, which is no verdict on the response.
        """
        ...

    def close(self) -> None:
        """Gives back what the episode holds. May come while `observe` is at work in another thread, which then ends

        soon and to no purpose. More than one call does no harm.
        """
        ...


class Environment(Protocol):
    """Opens episodes. `megatron_sspo/environment/<name>.py` defines `environment(**options)`, which builds one.

    How many turns there may be is for the environment to say: it ends a rollout by observing nothing. The limit on
    tokens, `sampling.max_tokens`, is for the whole rollout, observations included.
    """

    stop: Sequence[str]
    """Strings that end a turn, besides those of the sampling."""

    max_episodes: int
    """Episodes that may be open at a time; further rollouts wait for theirs. Each may be observing."""

    def open(self, prompt: Prompt) -> Episode:
        """An episode for one rollout, when its first turn is there. Returns at once: it may not wait for anything."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers by name since the last call, of this process; the run's rows have them as `environment/<name>`."""
        ...

    def close(self) -> None:
        """Ends all episodes, and gives back processes and files. More than one call does no harm."""
        ...
