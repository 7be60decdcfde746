"""`RolloutSource`: what makes the rollouts of a run: reward, environment or agent, engine, and cycles."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from megatron_sspo.config.user_code import call_user_code
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.evaluation.parts import open_parts
from megatron_sspo.reward.protocol import remarks_of
from megatron_sspo.rollout.cycles import RolloutCycles
from megatron_sspo.rollout.metrics import plugin_metrics
from megatron_sspo.rollout.open_engine import open_engine
from megatron_sspo.run import Run
from megatron_sspo.types import Prompt


class RolloutSource:
    """The parts that make rollouts, opened; `stack` closes them.

    `sync` is the collective that loads the policy's weights into the engine. `cycles` has the groups, one cycle at a
    time, and `parts` the rewards and environments, those of held-out sets included.
    """

    def __init__(
        self, run: Run, folder: Path, prompts: PromptStream, stack: ExitStack, *, sync: Callable[[], None]
    ) -> None:
        self._agent_or_environment = "agent" if run.rollouts.agent else "environment"
        self.parts = stack.enter_context(open_parts(run))
        self.engine = open_engine(run, Path(run.model.path), folder)
        stack.callback(call_user_code, self.engine.close, "the engine's close")
        self.engine.release_memory()  # until the first sync: a checkpoint is loaded, and a warm start trains
        self.cycles = RolloutCycles(
            run, self.engine, self.parts.reward, prompts, sync=sync, environment=self.parts.environment
        )

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads weights into the engine. A collective."""
        self.engine.load_weights(tensors, version)

    def remarks(self, prompts: Sequence[Prompt]) -> list[str]:
        """Returns the reward's remarks about the rows of training."""
        return list(remarks_of(self.parts.reward, prompts))

    def metrics(self, row: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of the cycle, and the plug-ins' own for this rank's share of the rollouts.

        An example of the latter is why programs failed.
        """
        of_cycle = self.cycles.metrics()
        kind = self._agent_or_environment
        parts = [(self.engine, "the engine", ""), (self.parts.reward, "the reward", "reward/")]
        parts.append((self.parts.environment, f"the {kind}", f"{kind}/"))
        return of_cycle | plugin_metrics({**row, **of_cycle}, parts)
