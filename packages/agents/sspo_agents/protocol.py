"""The interfaces between an agent, the endpoint that answers it, and the engine that samples the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Reward = float | Mapping[str, float] | None


class Agent(Protocol):
    """A program that calls the policy over HTTP any number of times.

    If the agent has a method `close`, plain or `async`, this is called at the end.
    """

    async def run(self, base_url: str, prompt: Any) -> Reward:
        """Runs one episode: works on the prompt with the policy at `base_url`, and rewards the result.

        Episodes run at the same time, in one event loop in a thread of their own. After `Limits.seconds` an episode is
        cancelled.

        Args:
            base_url: the address for a client of OpenAI's API. Its path contains the episode's key.
            prompt: the question, a `megatron_sspo.types.Prompt` in a run: `messages` is the chat that the prompts'
                source renders, `answer` the gold answer.

        Returns:
            The reward, or its parts by name. None leaves the reward to the run's `reward`, which scores the text of
            the episode's last turn.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of an episode, and the address of the endpoint."""

    address: str = "127.0.0.1"  # the address that the endpoint listens on
    max_episodes: int = 64  # the largest number of episodes in progress
    max_turns: int = 64  # the largest number of requests of an episode that are answered
    max_branches: int = 8  # the largest number of trajectories that an episode may become
    max_concurrent: int = 8  # the largest number of requests in progress of an episode
    seconds: float = 1800.0  # the time after which an episode is cancelled; waiting for the policy counts
    # what happens to requests that prescribe the form of their answer: refused, or answered and not learned from
    forced_turns: Literal["refuse", "observe"] = "refuse"


@dataclass(frozen=True)
class Model:
    """The text side of a model.

    Attributes:
        tokenizer: its tokenizer, of Transformers' interface. Only the endpoint's event loop uses it.
        render: returns `(messages, tools, is_answered)` as the chat template writes it.
        decode: returns the text of an answer's tokens, without end and padding tokens.
        vocab_size: the number of its tokens.
        max_tokens: the largest number of tokens of a conversation, answers included.
        limited_by: the settings that `max_tokens` comes from, for messages.
    """

    tokenizer: Any
    render: Callable[[Sequence[Any], Sequence[Any], bool], str]
    decode: Callable[[Sequence[int]], str]
    vocab_size: int
    max_tokens: int
    limited_by: str = "max_tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The tokens that the policy sampled in one turn."""

    tokens: Sequence[int]
    log_probs: Sequence[float]  # one for each token
    finish_reason: Literal["stop", "length"]
    spans: Sequence[tuple[int, int]]  # (policy version, number of consecutive tokens that it sampled)
    routes: Any = None  # of the turn's prompt and tokens; passed on


class Sampler(Protocol):
    """Samples the turns of one episode; every engine has its own."""

    takes_schemas: bool
    """Whether it samples JSON of a given schema."""

    async def sample(
        self, prompt: Sequence[int], *, max_tokens: int, stop: tuple[str, ...], number: int, schema: str
    ) -> Sampled:
        """Samples one turn. Cancelling it cancels the request. Any exception but a Refusal ends all episodes.

        Args:
            max_tokens: the largest number of tokens of the turn.
            stop: the client's strings that end the turn, in addition to those of the run.
            number: the number of the turn in its episode, from 0.
            schema: JSON schema that the turn must follow; "": any text.

        Raises:
            Refusal: the engine cannot follow the schema.
        """
        ...

    async def split_reasoning(self, text: str) -> tuple[str, str] | None:
        """Returns the content and the reasoning of an answer; None if they are in the format of Qwen and Hermes."""
        ...

    async def find_calls(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[tuple[str, str]]] | None:
        """Returns an answer's content and its calls of tools, each with a name and arguments as JSON.

        None: they are in the format of Qwen and Hermes.
        """
        ...
