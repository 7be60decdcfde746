"""`evaluate`: answers one set greedily and, if wanted, k more times by sampling."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.evaluation.answers import Answers, numbers
from megatron_sspo.reward.protocol import Reward
from megatron_sspo.rollout.collect import collect
from megatron_sspo.rollout.engine import RolloutEngine, Sampling
from megatron_sspo.types import Prompt, RolloutGroup

Kind = Literal["greedy", "sampled"]


class Kept:
    """The answers to a set, by prompt. This class keeps them in memory; `record.KeptInFiles` keeps them in files.

    Args:
        tokenizer: the tokenizer that decodes prompts.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._by_id: dict[Kind, dict[str, Answers]] = {"greedy": {}, "sampled": {}}

    def of(self, kind: Kind) -> dict[str, Answers]:
        """Returns the answers so far, by prompt id."""
        return self._by_id[kind]

    def arrived(self, kind: Kind, groups: Sequence[RolloutGroup]) -> None:
        """Called with groups as they complete, on the process that received them from the engine."""

    def add(self, kind: Kind, groups: Sequence[RolloutGroup]) -> None:
        """Adds all groups of a set, on every process."""
        self._by_id[kind] |= {group.prompt.id: Answers.of(group, self._tokenizer) for group in groups}


def evaluate(
    engine: RolloutEngine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    sync: Callable[[], None],
    kept: Kept,
    samples: int = 0,
    seed: int = 0,
    environment: Environment | None = None,
) -> dict[str, float]:
    """Generates answers with the engine's weights and computes the metrics.

    Args:
        sampling: parameters of the sampled answers; greedy answers use its token limit and stop strings.
        sync: function that sends the weights to the engine again.
        kept: the answers so far, to which new ones are added; a prompt with answers is not answered again.
        samples: k; if positive and if the reward has a part "answer", k answers per prompt are sampled.

    Returns:
        The set's metrics, see `answers.numbers`; the same on every process.
    """

    def ask(kind: Kind, how: Sampling, group_size: int) -> list[Answers]:
        known = kept.of(kind)
        if left := [prompt for prompt in prompts if prompt.id not in known]:
            groups = collect(
                engine,
                reward,
                left,
                how,
                group_size=group_size,
                seed=seed,
                sync=sync,
                environment=environment,
                arrived=lambda groups: kept.arrived(kind, groups),
            )
            kept.add(kind, groups)
        return [kept.of(kind)[prompt.id] for prompt in prompts]

    greedy = ask("greedy", replace(sampling, temperature=0.0, top_p=1.0), 1)
    has_answers = any("answer" in answers.answers[0].reward for answers in greedy)
    return numbers(greedy, ask("sampled", sampling, samples) if samples and has_answers else [])
