"""The tokens of an episode: a tree of turns, whose paths from the roots to the leaves are trajectories."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sspo_agents.messages import Message
from sspo_agents.protocol import Sampled


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A turn of the policy."""

    tools: str  # the tools that the prompt shows, as JSON
    messages: Sequence[Message]  # the conversation, with the answer of this turn at the end
    prompt: Sequence[int]  # the tokens of the parent with its prompt, and the tokens after them
    sampled: Sampled
    parent: "Turn | None"  # the turn that this one continues; None if it begins a branch
    is_forced: bool = False  # whether it was sampled under a grammar, and is only observed

    @property
    def tokens(self) -> list[int]:
        """The prompt and the sampled tokens."""
        return [*self.prompt, *self.sampled.tokens]


@dataclass(slots=True, eq=False)
class Trajectory:
    """A path of the tree, which ends with a turn that is learned from; `tokens` are those after its prompt.

    Each turn is learned from in one trajectory and is observed in the others; forced turns are observed in all.
    """

    prompt: Sequence[int]  # of the path's first turn
    finish_reason: Literal["stop", "length"] = "stop"
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    observed: list[tuple[int, int]] = field(default_factory=list)  # [first, beyond) in `tokens` of those not sampled
    spans: list[tuple[int, int]] = field(default_factory=list)
    routes: Any = None

    def observe(self, tokens: Sequence[int]) -> None:
        """Appends tokens that are not learned from."""
        if not tokens:
            return
        start, end = len(self.tokens), len(self.tokens) + len(tokens)
        if self.observed and self.observed[-1][1] == start:
            start = self.observed.pop()[0]
        self.observed.append((start, end))
        self.tokens += tokens
        self.log_probs += [0.0] * len(tokens)

    def learn(self, turn: Sampled) -> None:
        """Appends the tokens of a turn."""
        self.tokens += turn.tokens
        self.log_probs += turn.log_probs
        self.spans += turn.spans


class Tree:
    """The turns of an episode, in the order in which they ended."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def continued_by(self, tools: str, messages: Sequence[Message]) -> Turn | None:
        """Returns the turn that these messages continue: they begin with its conversation and add no answer to it.

        The longest conversation wins, and of equal ones the newest.
        """
        fits = [turn for turn in self.turns if turn.tools == tools and _continues(messages, turn.messages)]
        return max(reversed(fits), key=lambda turn: len(turn.messages), default=None)

    @property
    def num_branches(self) -> int:
        """The number of branches so far, including branches that end with a forced turn."""
        return sum(1 for _ in _leaves(self.turns))

    def is_leaf(self, turn: Turn) -> bool:
        """Returns whether no turn continues this one."""
        return all(other.parent is not turn for other in self.turns)

    def trajectories(self) -> list[Trajectory]:
        """Returns a trajectory for each leaf of the tree without the forced turns that end branches."""
        learned: set[int] = set()
        return [self._trajectory(leaf, learned) for leaf in _leaves(self._without_forced_ends())]

    def _without_forced_ends(self) -> list[Turn]:
        """Returns the turns, without the forced ones that no other turn continues."""
        found: list[Turn] = []
        continued: set[int] = set()
        for turn in reversed(self.turns):  # a turn comes after the one that it continues
            if not turn.is_forced or id(turn) in continued:
                found.append(turn)
                continued.add(id(turn.parent))
        return found[::-1]

    def _trajectory(self, leaf: Turn, learned: set[int]) -> Trajectory:
        path = [leaf]
        while path[0].parent is not None:
            path.insert(0, path[0].parent)
        found = Trajectory(path[0].prompt, leaf.sampled.finish_reason, routes=leaf.sampled.routes)
        for turn in path:
            found.observe(turn.prompt[len(found.prompt) + len(found.tokens) :])
            if turn.is_forced or id(turn) in learned:
                found.observe(turn.sampled.tokens)
            else:
                found.learn(turn.sampled)
                learned.add(id(turn))
        return found


def with_common_prompt(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the trajectories with the longest common beginning of their prompts as the prompt of all.

    The rest of each one's own prompt becomes observed tokens.
    """
    prompts = [trajectory.prompt for trajectory in trajectories]
    common = next((n for n, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1), None)
    num_shared = min(map(len, prompts), default=0) if common is None else common
    return [_joined(trajectory, num_shared) for trajectory in trajectories]


def _joined(trajectory: Trajectory, num_shared: int) -> Trajectory:
    """Returns the trajectory with its prompt after the first `num_shared` tokens moved to the observed tokens."""
    own = list(trajectory.prompt[num_shared:])
    observed = [(first + len(own), beyond + len(own)) for first, beyond in trajectory.observed]
    if own and observed and observed[0][0] == len(own):  # the path begins with a turn of another branch
        observed[0] = (0, observed[0][1])
    elif own:
        observed.insert(0, (0, len(own)))
    return replace(
        trajectory,
        prompt=trajectory.prompt[:num_shared],
        tokens=own + trajectory.tokens,
        log_probs=[0.0] * len(own) + trajectory.log_probs,
        observed=observed,
    )


def _leaves(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yields the turns that no other one continues."""
    parents = {id(turn.parent) for turn in turns}
    return (turn for turn in turns if id(turn) not in parents)


def _continues(messages: Sequence[Message], before: Sequence[Message]) -> bool:
    after = messages[len(before) :]
    return (
        len(after) > 0
        and all(message.role != "assistant" for message in after)
        and all(sent.repeats(known) for sent, known in zip(messages, before, strict=False))
    )
