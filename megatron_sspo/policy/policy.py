"""The policy π_θ: a Megatron model over many processes that gives log-probs, takes updates and exports its weights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from megatron_sspo.batching.microbatch import Microbatch, make_microbatch
from megatron_sspo.batching.pack import pack
from megatron_sspo.errors import UserError
from megatron_sspo.metrics import UpdateRecord, merge
from megatron_sspo.policy import checkpoint
from megatron_sspo.policy.distributed import context_group, data_parallel_group, is_last_stage, tensor_group
from megatron_sspo.policy.forward_step import ForwardStep, Loss, Objective, policy_loss, report_log_probs
from megatron_sspo.policy.model import build_chunks, padded_vocab_size, transformer_config
from megatron_sspo.policy.optimizer import make_optimizer, make_scheduler, wrap
from megatron_sspo.policy.weights import check_cuts, load_folder, make_gather
from megatron_sspo.run import Optimizer, Run
from megatron_sspo.types import RolloutGroup
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.hf_folder import HFFolder, write_folder

Batch = Sequence[RolloutGroup]


class Policy:
    """One policy, held by all processes of the job together. Every method is a collective.

    Args:
        run: what of it is used: model, parallel, optimizer, seed, tokens_per_microbatch, the sampling temperature.
        model_path: the Hugging Face folder that the weights come from.
        device: what `initialize` returned.
    """

    def __init__(self, run: Run, model_path: Path, device: torch.device) -> None:
        self.run = run
        self.device = device
        self.folder = HFFolder(model_path)
        self.family = load_family(self.folder.config)
        dtype = getattr(torch, run.model.dtype)
        self.transformer = transformer_config(self.family, self.folder.config, run.parallel, dtype, run.megatron)
        self.vocab_size = int(self.folder.config["vocab_size"])
        rows = self.family.rows(self.folder.config, padded_vocab_size(self.vocab_size, run.parallel.tensor))
        check_cuts(rows, run.parallel)
        chunks = build_chunks(self.family, self.folder.config, self.transformer)
        load_folder(chunks, rows, self.folder)
        self._gather = make_gather(chunks, rows)
        self.chunks = wrap(self.transformer, chunks)
        self.set_optimizer(run.optimizer, run.num_updates)

    def set_optimizer(self, options: Optimizer, num_updates: int) -> None:
        """A fresh optimizer, without moments, whose learning rate runs its course over `num_updates`."""
        self.optimizer = make_optimizer(self.transformer, self.chunks, options)
        self.scheduler = make_scheduler(self.optimizer, options, num_updates)

    # ------------------------------------------------------------------ microbatches -> log-probs, a new policy

    @torch.no_grad()
    def old_log_probs(self, batch: Batch) -> list[RolloutGroup]:
        """The batch with log π_old of every response token: this policy's own, before it moves."""
        plan, sequences = self._plan(batch)
        mine = plan[parallel_state.get_data_parallel_rank()]
        reports = self._schedule(self._microbatches(mine, sequences), report_log_probs, forward_only=True)
        found: dict[int, tuple[float, ...]] = {}
        for members, report in zip(mine, reports, strict=False):  # no reports where there is no loss
            lengths = [len(sequences[i][1].tokens) for i in members]
            for index, values in zip(members, report["log_probs"].cpu().split(lengths), strict=True):
                found[index] = tuple(values.tolist())
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        log_probs = {index: values for part in everyone for index, values in part.items()}
        order = iter(range(len(sequences)))
        return [
            replace(group, rollouts=[replace(r, old_log_probs=log_probs[next(order)]) for r in group.rollouts])
            for group in batch
        ]

    def update(self, batch: Batch, objective: Objective) -> UpdateRecord:
        """One optimizer step on −J of the batch.

        Raises:
            UserError: the loss or the gradient is not finite. The weights in memory are then not to be used; the last
                checkpoint is untouched.
        """
        plan, sequences = self._plan(batch)
        mine = plan[parallel_state.get_data_parallel_rank()]
        ranks = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
        scale = len(mine) * ranks / len(sequences)
        loss = policy_loss(objective, self.run.penalties, self.run.correction, scale=scale)
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        reports = self._schedule(self._microbatches(mine, sequences), loss, forward_only=False)
        record = merge(self._reports_of_all_ranks(reports), num_sequences=len(sequences))
        if not torch.isfinite(torch.tensor(record.loss)):
            raise UserError(
                f"the loss is {record.loss}: no step was taken; look at the batch's rewards and log-probs, and resume "
                "from the last checkpoint with a lower learning rate"
            )
        self.scheduler.step(increment=1)  # before the step: warm-up then starts above 0, and no update is wasted
        _, grad_norm, _ = self.optimizer.step()
        if not torch.isfinite(torch.as_tensor(grad_norm)):
            raise UserError(
                f"the gradient norm is {grad_norm}: the weights in memory are spoilt; resume from the last checkpoint "
                "with a lower learning rate"
            )
        learning_rate = self.optimizer.param_groups[0]["lr"]
        return replace(record, grad_norm=float(grad_norm), learning_rate=float(learning_rate))

    # ------------------------------------------------------------------ weights out, state out and in

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """A stream of (Hugging Face name, tensor), on every rank. Every rank has to consume all of it."""
        return self._gather()

    def export(self, path: Path) -> None:
        """Writes a Hugging Face folder that Transformers loads; written by rank 0, under another name until whole."""
        if dist.get_rank() == 0:
            write_folder(path, self.weights(), source=self.folder)
        else:
            for _ in self.weights():
                pass
        dist.barrier()

    def save(self, path: Path) -> None:
        """Model, optimizer, schedule and random states into `path`."""
        checkpoint.save(path, self.chunks, self.optimizer, self.scheduler)

    def load(self, path: Path) -> None:
        """The reverse of `save`, in the same layout."""
        checkpoint.load(path, self.chunks, self.optimizer, self.scheduler)

    # ------------------------------------------------------------------ how a batch meets the schedule

    def _plan(self, batch: Batch) -> tuple[list[list[list[int]]], list[Any]]:
        sequences = [(group.prompt.tokens, rollout) for group in batch for rollout in group.rollouts]
        lengths = [len(prompt) + len(rollout.tokens) for prompt, rollout in sequences]
        pipeline = self.run.parallel.pipeline
        plan = pack(
            lengths,
            num_ranks=parallel_state.get_data_parallel_world_size(),
            max_tokens=self.run.tokens_per_microbatch,
            multiple_of=pipeline if self.run.parallel.virtual_pipeline > 1 else 1,
        )
        return plan, sequences

    def _microbatches(self, mine: list[list[int]], sequences: list[Any]) -> list[Microbatch]:
        return [
            make_microbatch(
                [sequences[i] for i in members],
                tensor_shards=self.run.parallel.tensor if self.run.parallel.sequence else 1,
                context_rank=parallel_state.get_context_parallel_rank(),
                context_size=self.run.parallel.context,
            ).to(self.device)
            for members in mine
        ]

    def _schedule(self, microbatches: list[Microbatch], loss: Loss, *, forward_only: bool) -> list[dict[str, Any]]:
        """Megatron's own schedule; what the loss function reported for each microbatch, on the last stage."""
        step = ForwardStep(
            loss,
            temperature=self.run.rollouts.sampling.temperature,
            vocab_size=self.vocab_size,
            tensor_group=tensor_group(),
            context_group=context_group() if self.run.parallel.context > 1 else None,
        )
        iterators = [iter(microbatches) for _ in self.chunks]
        run_schedule: Callable[..., Any] = get_forward_backward_func()
        return run_schedule(
            forward_step_func=step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=len(microbatches),
            seq_length=self.run.tokens_per_microbatch,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _reports_of_all_ranks(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Every data-parallel rank's reports, in the same order on every rank of the job."""
        on_cpu = [_to_cpu(report) for report in reports] if is_last_stage() else []
        gathered: list[Any] = [None] * parallel_state.get_data_parallel_world_size()
        dist.all_gather_object(gathered, on_cpu, group=data_parallel_group())
        if parallel_state.get_pipeline_model_parallel_world_size() > 1:
            group: Any = parallel_state.get_pipeline_model_parallel_group()
            dist.broadcast_object_list(
                gathered, src=parallel_state.get_pipeline_model_parallel_last_rank(), group=group
            )
        return [report for part in gathered for report in part]


def _to_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    return value.cpu()
