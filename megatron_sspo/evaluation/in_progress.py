"""The evaluation of a run's weights, which servers may answer while the trainer goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from megatron_sspo.agent.agents import Agents
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.evaluation.evaluate import AnswerStore, SetEvaluation
from megatron_sspo.evaluation.sets import sampling_of, sets_of
from megatron_sspo.reward.protocol import Reward
from megatron_sspo.rollout.engine import RolloutEngine
from megatron_sspo.run import Run
from megatron_sspo.types import Prompt


class WeightsLost(Exception):
    """Raised if the servers lost the evaluated weights, and the trainer no longer has them."""


@dataclass(frozen=True)
class EvaluationInProgress:
    """An evaluation of all sets, whose answers are being generated.

    No other weights may be loaded into the engine before the evaluation ends, so that all answers are of one policy.

    Attributes:
        update: the update whose weights are evaluated.
        sets: the evaluations of the sets, by name.
    """

    update: int
    sets: Mapping[str, SetEvaluation]

    @classmethod
    def begin(
        cls,
        run: Run,
        update: int,
        engine: RolloutEngine,
        held_out: Mapping[str, Sequence[Prompt]],
        rewards: Mapping[str, Reward],
        environments: Mapping[str, Environment | Agents | None],
        tokenizer: Any,
    ) -> Self:
        """Begins to answer the sets' prompts with the engine's weights.

        Args:
            held_out, rewards, environments: the prompts, the reward and the environment of each set, by its name.
            tokenizer: the tokenizer that decodes prompts.
        """
        assert run.evaluation is not None
        sets = {
            name: SetEvaluation(
                engine,
                rewards[name],
                held_out[name],
                sampling_of(run, of_set),
                store=AnswerStore(tokenizer),
                samples=run.evaluation.samples,
                seed=run.seed,
                environment=environments[name],
            )
            for name, of_set in sets_of(run).items()
        }
        for found in sets.values():
            found.begin()
        return cls(update, sets)

    def finish_set(self, name: str, sync: Callable[[], None]) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Waits for the answers of a set, and returns its metrics, and its greedy answers as JSON values.

        Args:
            sync: collective that sends the evaluated weights to the engine again.
        """
        found = self.sets[name]
        metrics = found.compute_metrics(sync)
        return metrics, [{"set": name, **answers.to_row()} for answers in found.store.by_id("greedy").values()]

    def cancel(self) -> None:
        """Cancels the answers that are not complete."""
        for found in self.sets.values():
            found.cancel()
