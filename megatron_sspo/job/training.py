"""`Training`: the policy of a run and its progress, restored from checkpoints, saved and exported."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megatron_sspo.batching.holders import outline
from megatron_sspo.checkpoint.state import (
    INITIAL_WEIGHTS,
    LOOP_STATE,
    TEACHER_WEIGHTS,
    State,
    list_checkpoints,
    read_checkpoint,
)
from megatron_sspo.checkpoint.writer import CheckpointWriter
from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.files.removing import remove
from megatron_sspo.policy.policy import Policy
from megatron_sspo.processes import agree, parent
from megatron_sspo.run import Run
from megatron_sspo.run_folder.resuming import check_files, has_other_layout
from megatron_sspo.types import Batch, RolloutGroup, rollouts_of
from megatron_sspo.weights.transformers_config import transformers_errors_as_user_errors


class Training:
    """The policy with its initial weights, and the progress of a new run. All methods are collectives.

    `resumed_from` is the newest checkpoint, None for a run that begins, `state` the progress, and `teach` a collective
    that returns batches with the teacher's log-prob of every response token. `on_saved`: see `CheckpointWriter`.
    """

    def __init__(
        self, run: Run, folder: Path, device: torch.device, *, on_saved: Callable[[int, float, float], None]
    ) -> None:
        self._run, self._folder, checkpoints = run, folder, folder / "checkpoints"
        found = agree.run_on_rank_0(lambda: list_checkpoints(checkpoints))
        self.resumed_from = found[-1] if found else None
        if self.resumed_from is not None and parent.is_launched() and not parent.is_child():
            check_files(self.resumed_from, rank=dist.get_rank(), num_ranks=dist.get_world_size())
        weights = Path(run.model.path)
        if run.model.init == "random":
            from megatron_sspo.weights.formats.random import INITIAL_MODEL

            weights = folder / INITIAL_MODEL
            agree.run_on_rank_0(lambda: self._write_random_weights(weights))
        self.state = State()
        self.policy = Policy(run, weights, device)
        self.teach: Callable[[Sequence[Batch]], list[list[RolloutGroup]]] = self.policy.teacher_log_probs
        self._initial_weights = agree.run_on_rank_0(self.policy.folder.fingerprint)
        self._teacher_weights = agree.run_on_rank_0(self.policy.teacher_fingerprint)
        self.checkpoints = CheckpointWriter(
            checkpoints,
            config_to_json(run),
            kept=run.checkpoints_kept,
            in_background=run.checkpoint_in_background,
            on_saved=on_saved,
        )

    def open_teacher(self, stack: ExitStack) -> None:
        """Opens a teacher that servers have, after the policy, because they measure how much memory is free."""
        if self._run.teacher and self._run.teacher.is_served:
            from megatron_sspo.job.served_teacher import ServedTeacher

            teacher = ServedTeacher(self._run, self._folder)
            stack.callback(teacher.close)
            self.teach = teacher.log_probs

    def restore(self) -> dict[str, Any]:
        """Restores the policy and the cycle of `resumed_from`, and returns the states that `save` was given."""
        checkpoint = self.resumed_from
        assert checkpoint is not None
        extra = self._read_state(checkpoint)
        is_other_layout = agree.run_on_rank_0(lambda: has_other_layout(self._run, checkpoint))
        (self.policy.load_resharded if is_other_layout else self.policy.load)(checkpoint / "trainer")
        self._initial_weights = extra.get(INITIAL_WEIGHTS) or self._initial_weights
        self.state.batches = self.policy.scatter(self.state.batches)
        if self._run.needs_reference and agree.run_on_rank_0(lambda: self._lacks("reference_log_probs")):
            self.state.batches = self.policy.reference_log_probs(self.state.batches)
        teacher = self._run.teacher
        needed = "teacher_top_tokens" if teacher and teacher.top_k else "teacher_log_probs"
        if teacher and agree.run_on_rank_0(lambda: self._lacks(needed)):
            self.state.batches = self.teach(self.state.batches)
        self.checkpoints.newest = self.state.update
        return extra

    def save(self, states: Mapping[str, Any]) -> None:
        """Saves a checkpoint, with the states of other parts by the names of `LOOP_STATE`."""
        weights = {INITIAL_WEIGHTS: self._initial_weights, TEACHER_WEIGHTS: self._teacher_weights}
        self.checkpoints.save(self.policy.begin_save, self.state, {**states, **weights})

    @property
    def is_saved(self) -> bool:
        """True if the newest checkpoint has this progress."""
        return self.checkpoints.newest == self.state.update

    def export(self) -> Path:
        """Writes the model's folder, in place of that of an earlier attempt, and returns its path."""
        model, replaced = self._folder / "model", self._folder / ".model-replaced"

        def set_aside() -> None:
            with os_errors_as_user_errors(self._folder):
                if model.exists():
                    remove(replaced)
                    model.rename(replaced)

        agree.run_on_rank_0(set_aside)
        self.policy.export(model)
        if self._run.lora:
            self.policy.export_adapter(self._folder / "adapter")
        if agree.is_main():
            remove(replaced)
        return model

    def _write_random_weights(self, destination: Path) -> None:
        """Makes the Hugging Face folder of random weights in the run's folder, if it is not there."""
        from megatron_sspo.weights.formats.random import write_random_weights

        source = Path(self._run.model.path)
        if self.resumed_from is None:  # an earlier attempt may have used another seed
            remove(destination)
        with transformers_errors_as_user_errors(source / "config.json"), os_errors_as_user_errors(destination):
            write_random_weights(source, destination, self._run.seed)

    def _lacks(self, name: str) -> bool:
        """Returns whether the cycle was begun by a run that did not need these log-probs."""
        rollouts = [rollout for batch in self.state.batches for rollout in rollouts_of(batch)]
        return any(getattr(rollout, name) is None for rollout in rollouts)

    def _read_state(self, checkpoint: Path) -> dict[str, Any]:
        """Reads the state on rank 0; the other ranks get it with outlines of the batches. Returns the extra state."""

        def read() -> tuple[State, dict[str, Any]]:
            self.state, extra = read_checkpoint(checkpoint, LOOP_STATE)
            return replace(self.state, batches=[outline(batch) for batch in self.state.batches]), extra

        outlined, extra = agree.run_on_rank_0(read)
        if not agree.is_main():
            self.state = outlined
        return extra
