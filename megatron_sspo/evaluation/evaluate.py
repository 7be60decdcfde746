"""`SetEvaluation`: answers one set greedily and, if wanted, k more times by sampling."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from megatron_sspo.evaluation.answers import Answers, compute_metrics
from megatron_sspo.reward.protocol import Reward
from megatron_sspo.rollout.collect import PendingGeneration, collect, start_generation
from megatron_sspo.rollout.engine import Episodes, RolloutEngine
from megatron_sspo.types import Prompt, RolloutGroup, Sampling

Kind = Literal["greedy", "sampled"]


class AnswerStore:
    """The answers to a set, by prompt. This class keeps them in memory; `record.AnswerFiles` keeps them in files."""

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


class SetEvaluation:
    """The evaluation of one set.

    Args:
        sampling: parameters of the sampled answers; greedy answers use its token limit and stop strings.
        store: the answers so far, to which new ones are added; a prompt with answers is not answered again.
        samples: k; if positive and if the reward has a part "answer", k answers per prompt are sampled.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        reward: Reward,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        store: AnswerStore,
        samples: int = 0,
        seed: int = 0,
        environment: Episodes | None = None,
    ) -> None:
        self._engine, self._reward, self._prompts = engine, reward, prompts
        self._seed, self._environment = seed, environment
        self._sampling: dict[Kind, Sampling] = {
            "greedy": replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0),
            "sampled": sampling,
        }
        self._sizes: dict[Kind, int] = {"greedy": 1, "sampled": samples}
        self._begun: dict[Kind, PendingGeneration] = {}
        self.store = store

    def begin(self) -> None:
        """Begins all answers, with the weights that the engine has; servers start to generate at once."""
        for kind, size in self._sizes.items():
            if size:
                self._begin(kind)

    def compute_metrics(self, sync: Callable[[], None]) -> dict[str, float]:
        """Begins the answers that are not begun yet, waits for all of them, and computes the metrics.

        They are those of `answers.compute_metrics`, the same on every process.
        """
        greedy = self._answers("greedy", sync)
        has_answers = any("answer" in answers.answers[0].reward for answers in greedy)
        sampled = self._answers("sampled", sync) if self._sizes["sampled"] and has_answers else []
        self.cancel()  # sampled answers that turned out not to be needed
        return compute_metrics(greedy, sampled)

    def cancel(self) -> None:
        """Cancels the answers that were begun and not waited for."""
        for pending in self._begun.values():
            pending.cancel()
        self._begun.clear()

    def _begin(self, kind: Kind) -> None:
        known = self.store.by_id(kind)
        if left := [prompt for prompt in self._prompts if prompt.id not in known]:
            self._begun[kind] = start_generation(
                self._engine,
                left,
                self._sampling[kind],
                group_size=self._sizes[kind],
                seed=self._seed,
                environment=self._environment,
            )

    def _answers(self, kind: Kind, sync: Callable[[], None]) -> list[Answers]:
        if kind not in self._begun:
            self._begin(kind)
        if (pending := self._begun.get(kind)) is not None:
            groups = collect(pending, self._reward, sync=sync, on_groups=lambda groups: self.store.save(kind, groups))
            del self._begun[kind]
            self.store.add(kind, groups)
        return [self.store.by_id(kind)[prompt.id] for prompt in self._prompts]
