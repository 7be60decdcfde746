"""`evaluate`: answers one set greedily and, if wanted, k more times by sampling."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from megatron_sspo.environment.protocol import Environment
from megatron_sspo.evaluation.answers import Answers, compute_metrics
from megatron_sspo.reward.protocol import Reward
from megatron_sspo.rollout.collect import collect
from megatron_sspo.rollout.engine import RolloutEngine
from megatron_sspo.types import Prompt, RolloutGroup, Sampling

Kind = Literal["greedy", "sampled"]


class AnswerStore:
    """The answers to a set, by prompt. This class keeps them in memory; `record.AnswerFiles` keeps them in files.

    Args:
        tokenizer: the tokenizer that decodes prompts.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._by_id: dict[Kind, dict[str, Answers]] = {"greedy": {}, "sampled": {}}

    def by_id(self, kind: Kind) -> dict[str, Answers]:
        """Returns the answers so far, by prompt id."""
        return self._by_id[kind]

    def save(self, kind: Kind, groups: Sequence[RolloutGroup]) -> None:
        """Saves groups as they complete, on the process that received them; does nothing in memory."""

    def add(self, kind: Kind, groups: Sequence[RolloutGroup]) -> None:
        """Adds all groups of a set, on every process."""
        self._by_id[kind] |= {group.prompt.id: Answers.from_group(group, self._tokenizer) for group in groups}


def evaluate(
    engine: RolloutEngine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    sync: Callable[[], None],
    store: AnswerStore,
    samples: int = 0,
    seed: int = 0,
    environment: Environment | None = None,
) -> dict[str, float]:
    """Generates answers with the engine's weights and computes the metrics.

    Args:
        sampling: parameters of the sampled answers; greedy answers use its token limit and stop strings.
        sync: function that sends the weights to the engine again.
        store: the answers so far, to which new ones are added; a prompt with answers is not answered again.
        samples: k; if positive and if the reward has a part "answer", k answers per prompt are sampled.

    Returns:
        The set's metrics, see `answers.compute_metrics`; the same on every process.
    """

    def generate(kind: Kind, parameters: Sampling, group_size: int) -> list[Answers]:
        known = store.by_id(kind)
        if left := [prompt for prompt in prompts if prompt.id not in known]:
            groups = collect(
                engine,
                reward,
                left,
                parameters,
                group_size=group_size,
                seed=seed,
                sync=sync,
                environment=environment,
                on_groups=lambda groups: store.save(kind, groups),
            )
            store.add(kind, groups)
        return [store.by_id(kind)[prompt.id] for prompt in prompts]

    greedy = generate("greedy", replace(sampling, temperature=0.0, top_p=1.0), 1)
    has_answers = any("answer" in answers.answers[0].reward for answers in greedy)
    return compute_metrics(greedy, generate("sampled", sampling, samples) if samples and has_answers else [])
