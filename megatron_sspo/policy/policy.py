"""The policy π_θ: a Megatron model over many processes that computes log-probs, is updated and exports its weights."""

import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from megatron_sspo.batching.holders import with_field
from megatron_sspo.checkpoint import sharded
from megatron_sspo.checkpoint.saving import AsyncSave
from megatron_sspo.errors import UserError
from megatron_sspo.memory.parameters import padded_vocab_size
from megatron_sspo.objective.average import average_of
from megatron_sspo.objective.inputs import needs_of
from megatron_sspo.policy.forward_step import Objective, loss_scale, policy_loss
from megatron_sspo.policy.metrics import UpdateRecord, merge_reports
from megatron_sspo.policy.model import build_chunks, transformer_config
from megatron_sspo.policy.names import logical_parameters, weights_of
from megatron_sspo.policy.optimizer import ddp_config, make_optimizer, make_scheduler, rate_scale, wrap_in_ddp
from megatron_sspo.policy.router_load import RouterLoad
from megatron_sspo.policy.schedule import Schedule
from megatron_sspo.policy.shared_prompts.rules import shares_prompts
from megatron_sspo.policy.teacher import TeacherModel, teacher_config
from megatron_sspo.policy.weights import check_shards, load_folder, make_gather_plan, shard_of
from megatron_sspo.policy.with_cuda.fast_fields import describe_kernels, multiply_experts_at_once
from megatron_sspo.policy.with_cuda.installed import has_transformer_engine
from megatron_sspo.processes import agree
from megatron_sspo.run import Optimizer, Run
from megatron_sspo.types import Batch, RolloutGroup, rollouts_of
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.companions import copy_tokenizer_files, write_config
from megatron_sspo.weights.formats.hf_folder import write_folder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.gather import AdapterPlan, GatherPlan

if TYPE_CHECKING:
    from megatron_sspo.lora.adapters import Adapters


@dataclass(frozen=True, kw_only=True)
class Makers:
    """The functions by which a policy makes its parts; a rehearsal of a run passes its own."""

    open_folder: Callable[[Path], ModelFolder] = open_folder
    build_chunks: Callable[..., list[Any]] = build_chunks
    wrap_in_ddp: Callable[..., list[Any]] = wrap_in_ddp
    make_optimizer: Callable[..., Any] = make_optimizer
    make_gather_plan: Callable[..., GatherPlan] = make_gather_plan
    make_schedule: Callable[..., Schedule] = Schedule
    merge_reports: Callable[..., UpdateRecord] = merge_reports


_MAKERS = Makers()


class Policy:
    """One policy, held by all processes of the job together. Every method is a collective.

    Args:
        model_path: the folder of the initial weights, either a Hugging Face folder or a Megatron checkpoint.
        device: the device that `initialize` returned.
    """

    @torch.enable_grad()  # the file of a reward may have turned gradients off for the whole process
    def __init__(self, run: Run, model_path: Path, device: torch.device, makers: Makers = _MAKERS) -> None:
        self.run = run
        self.device = device
        self._makers = makers
        self.folder = makers.open_folder(model_path)
        self.family = load_family(self.folder.config, self.folder.config_folder)
        dtype = getattr(torch, run.model.dtype)
        self.transformer = transformer_config(
            self.family,
            self.folder.config,
            run.parallel,
            dtype,
            # adapters of experts need a layer for each expert
            {"moe_grouped_gemm": False, **run.megatron} if run.lora else run.megatron,
            routing_replay=run.routing_replay != "none",
        )
        self.vocab_size = int(self.folder.config["vocab_size"])
        self.rows = self.family.rows(self.folder.config, padded_vocab_size(self.vocab_size, run.parallel.tensor))
        check_shards(self.rows, run.parallel)
        share_prompts = shares_prompts(run.share_prompts, self.transformer)
        if run.held_teacher:  # which computes the same rows
            teacher = makers.open_folder(Path(run.held_teacher))
            fields = teacher_config(run, load_family(teacher.config, teacher.config_folder), teacher.config)
            share_prompts = share_prompts and shares_prompts(run.share_prompts, fields)
        # before the policy's own, so that its weights leave the device before those come
        self._teacher = (
            TeacherModel(run, Path(run.held_teacher), makers, share_prompts=share_prompts) if run.held_teacher else None
        )
        chunks = makers.build_chunks(self.family, self.folder.config, self.transformer, share_prompts=share_prompts)
        load_folder(chunks, self.rows, self.folder)
        self._gather_plan = makers.make_gather_plan(chunks, self.rows)
        self.adapters: Adapters | None = None
        if run.lora:
            from megatron_sspo.lora.adapters import add_adapters
            from megatron_sspo.lora.peft_folder import adapter_config

            layout = {"parameters_of": logical_parameters, "shard_of": shard_of}
            self.adapters = add_adapters(chunks, self.rows, run.lora, run.seed, **layout)
            config = adapter_config(run.lora, self.adapters.factors, str(run.model.path))
            adapter = AdapterPlan(copy(self._gather_plan), cache(self.adapters.gather_plan), config)
            self._gather_plan.adapter = adapter
            self._gather_plan.parameters = self.adapters.merged(self._gather_plan.parameters)
        # the reference policy's weights, kept on the host because they are not used most of the time
        keeps_reference = run.needs_reference and not run.lora
        self._reference = [
            {name: weight.detach().cpu().clone() for name, weight in weights_of(chunk)}
            for chunk in (chunks if keeps_reference else ())
        ]
        routing = None
        if run.routing_replay != "none":
            from megatron_sspo.policy.routing_replay import RoutingReplay

            routing = RoutingReplay(chunks)
        self.ddp = ddp_config(run.ddp, run.parallel)
        self.chunks = makers.wrap_in_ddp(self.transformer, self.ddp, chunks)
        multiply_experts_at_once(self.transformer)
        self.kernels = describe_kernels(self.transformer, self.ddp)  # a line for the start of a run; "" without CUDA
        if share_prompts and has_transformer_engine():
            from megatron_sspo.policy.shared_prompts.transformer_engine import refusal_of_any_rank

            models = [chunks, *([self._teacher.chunks] if self._teacher else [])]
            if reason := next(filter(None, [refusal_of_any_rank(model, device) for model in models]), ""):
                share_prompts = False
                self.kernels += (
                    f"; prompts are not shared, because attention by Transformer Engine failed a check: {reason}"
                )
        self._load = RouterLoad(chunks)
        self._schedule = makers.make_schedule(
            run, self.transformer, self.chunks, self.vocab_size, routing, self._load, share_prompts=share_prompts
        )
        self.set_optimizer(run.optimizer, run.num_updates)

    def set_optimizer(self, options: Optimizer, num_updates: int) -> None:
        """Makes a fresh optimizer, whose moments are 0, and a schedule of learning rates over `num_updates`."""
        self.optimizer: Any = None
        self.scheduler: Any = None
        self.transformer.grad_scale_func = None
        gc.collect()  # an earlier optimizer goes first, because its state is most of the memory
        self.optimizer = self._makers.make_optimizer(self.transformer, self.ddp, self.chunks, options)
        self.scheduler = make_scheduler(self.optimizer, options, num_updates)
        self._options = options

    # ------------------------------------------------------------------ microbatches -> log-probs, a new policy

    def scatter(self, batches: Sequence[Batch]) -> list[list[RolloutGroup]]:
        """Returns the batches with the contents of the sequences that this rank computes, sent by rank 0.

        Raises:
            UserError: a sequence does not fit into a microbatch.
        """
        return [self._schedule.scatter(batch) for batch in batches]

    @torch.no_grad()
    def old_log_probs(self, batch: Batch) -> list[RolloutGroup]:
        """Returns the batch with log π_old of every response token: those of this policy before it is updated.

        The batch also gets the entropies of π_old, if the objective needs them, and under R2 the routes that every
        token took here. Rank 0 gets all values. Any other rank gets the values of the sequences that it computes, and
        its other rollouts become outlines.
        """
        record = self.run.routing_replay == "R2"
        rank_batch = self._schedule.rank_batch(batch, replay=not record)
        fields = {"old_log_probs": "log_probs"}
        if "old_entropy" in needs_of(self.run.objective):
            fields["old_entropy"] = "entropy"
        values = self._schedule.token_values(rank_batch, list(fields.values()), record=record)
        changed = list(batch)
        for field, found in zip(fields, values, strict=True):
            changed = _with_token_values(changed, field, found)
        return with_field(changed, "routes", *self._schedule.gather_routes(rank_batch)) if record else changed

    @torch.no_grad()
    def reference_log_probs(self, batches: Sequence[Batch]) -> list[list[RolloutGroup]]:
        """Returns the batches with log π_ref of every response token, for a KL penalty or the objective.

        π_ref has the weights of the run's start, or of the last `move_reference`. Each rank gets the values of the same
        sequences as in `old_log_probs`.
        """
        self._finish_step()
        if self.adapters:
            with self.adapters.off():
                return self._reference_values(batches)
        parameters = self._weights()
        current = [parameter.detach().cpu().clone() for parameter in parameters]
        try:
            torch._foreach_copy_(parameters, self._reference_weights())  # pyright: ignore
            return self._reference_values(batches)
        finally:
            torch._foreach_copy_(parameters, current)  # pyright: ignore

    @torch.no_grad()
    def move_reference(self) -> None:
        """Gives the reference policy the current weights."""
        self._finish_step()
        torch._foreach_copy_(self._reference_weights(), self._weights())  # pyright: ignore

    def _weights(self) -> list[torch.Tensor]:
        return [weight for chunk in self.chunks for _, weight in weights_of(chunk)]

    def _reference_weights(self) -> list[torch.Tensor]:
        return [weight for chunk in self._reference for weight in chunk.values()]

    def teacher_log_probs(self, batches: Sequence[Batch]) -> list[list[RolloutGroup]]:
        """Returns the batches with the teacher's log-prob of every response token, and its likeliest tokens' if needed.

        Each rank gets the values of the same sequences as in `old_log_probs`.
        """
        assert self._teacher is not None
        taught = []
        for batch in batches:
            for name, values in self._teacher.log_probs(self._schedule.rank_batch(batch, replay=False)).items():
                batch = _with_token_values(batch, name, values)
            taught.append(list(batch))
        return taught

    def teacher_fingerprint(self) -> str:
        """Returns the checksum of the teacher's weights; "" without a teacher. For one rank."""
        return self._teacher.folder.fingerprint() if self._teacher else ""

    def _reference_values(self, batches: Sequence[Batch]) -> list[list[RolloutGroup]]:
        values = [self._schedule.token_values(self._schedule.rank_batch(b), ["log_probs"]) for b in batches]
        pairs = zip(batches, values, strict=True)
        return [_with_token_values(batch, "reference_log_probs", found) for batch, (found,) in pairs]

    @torch.enable_grad()  # a reward's `score` may have turned gradients off for the whole process
    def gradient(self, batch: Batch, objective: Objective) -> UpdateRecord:
        """Computes the gradient of −J of the batch into Megatron's gradient buffers, and returns the metrics.

        Only rank 0's metrics have the values of tokens and sequences; the loss is on every rank.

        J is divided once, by a number of the whole batch that the objective's average names, however the sequences are
        spread over ranks and microbatches. The branches of an agent's episode count as one sequence.

        Raises:
            UserError: see `policy_loss` and `merge_reports`.
        """
        rank_batch = self._schedule.rank_batch(batch)
        num_episodes = sum(len(group.episodes) for group in batch)
        num_tokens = sum(rollout.num_response_tokens for _, rollout in rank_batch.sequences)
        divisor = average_of(objective).divisor(num_episodes, num_tokens)
        scale = loss_scale(num_microbatches=len(rank_batch.microbatches), divisor=divisor)
        # demonstrations of a warm start have no log-probs of a teacher
        is_taught = any(rollout.teacher_log_probs is not None for rollout in rollouts_of(batch))
        teacher = self.run.teacher if is_taught else None
        loss = policy_loss(objective, self.run.penalties, self.run.correction, teacher, scale=scale)
        for chunk in self.chunks:
            chunk.restore_grad_buffers(synchronize=False)  # does nothing unless they were released
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self._load.begin()
        reports = self._schedule.run(rank_batch, loss, forward_only=False)
        router = self._load.metrics(num_microbatches=len(rank_batch.microbatches))
        gathered = self._schedule.gather_reports(reports)
        record = UpdateRecord(loss=0.0, tokens={}, sequences={}, order=rank_batch.order)
        with agree.same_error_on_all_ranks():
            if agree.is_main():
                record = self._makers.merge_reports(gathered, order=rank_batch.order, divisor=divisor)
        return replace(record, loss=agree.broadcast_from_rank_0(record.loss), router=router)

    def release_gradients(self) -> None:
        """Frees the gradient buffers, which nothing needs before the next `gradient`; all views of them stay valid."""
        self.optimizer.zero_grad()  # its gradients are views of the buffers
        for chunk in self.chunks:
            chunk.offload_grad_buffers(synchronize=False, empty_cache=False)

    def update(self, batch: Batch, objective: Objective) -> UpdateRecord:
        """Takes one optimizer step on −J of the batch.

        Raises:
            UserError: the loss or the gradient is not finite. The weights in memory must then not be used; the last
                checkpoint is unchanged.
        """
        record = self.gradient(batch, objective)
        if not math.isfinite(record.loss):
            raise UserError(
                f"the loss is {record.loss}: no step was taken; check the batch's rewards and log-probs, and resume "
                "from the last checkpoint with a lower learning rate"
            )
        self.scheduler.step(increment=1)  # before the step, so that warm-up starts above 0 and no update is wasted
        if self._options.full_rate_ess or self._options.full_rate_kl:
            self._lower_rate(batch, record)
        grad_norm = float(self.optimizer.step()[1])
        if not math.isfinite(grad_norm):
            raise UserError(
                f"the gradient norm is {grad_norm}: the weights in memory are invalid; resume from the last checkpoint "
                "with a lower learning rate"
            )
        return replace(record, grad_norm=grad_norm, learning_rate=float(self.optimizer.param_groups[0]["lr"]))

    def _lower_rate(self, batch: Batch, record: UpdateRecord) -> None:
        """Multiplies the schedule's learning rate of this update by `rate_scale` of rank 0's values."""

        def scale() -> float:
            episodes = enumerate(episode for group in batch for episode in group.episodes)
            found = [(rollout.num_response_tokens, number) for number, episode in episodes for rollout in episode]
            lengths, numbers = zip(*(found[index] for index in record.order), strict=True)
            return rate_scale(self._options, record.tokens["log_ratio"], lengths, numbers)

        factor = agree.run_on_rank_0(scale)
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    # ------------------------------------------------------------------ weights out, state out and in

    def weights(self) -> GatherPlan:
        """Returns the plan that gathers the weights; its iteration yields (Hugging Face name, tensor) on every rank.

        The plan reads the parameters themselves, so every rank has to consume the whole stream before the next update.
        """
        self._finish_step()
        return self._gather_plan

    def export(self, path: Path) -> None:
        """Writes a Hugging Face folder that Transformers loads. Rank 0 writes it and renames it when complete."""
        _write_at_rank_0(self.weights(), lambda stream: write_folder(path, stream, source=self.folder))

    def export_adapter(self, path: Path) -> None:
        """Writes the adapters as a PEFT folder."""
        from megatron_sspo.lora.peft_folder import write_peft_folder

        adapter = self.weights().adapter
        assert adapter is not None
        _write_at_rank_0(adapter.factors(), lambda stream: write_peft_folder(path, stream, adapter.config))

    def save(self, path: Path) -> None:
        """Writes model, optimizer, schedule and random states into `path`, and the model's configuration."""
        self.begin_save(path).wait()

    def begin_save(self, path: Path) -> AsyncSave:
        """Begins to save the policy's current state in the background."""
        self._finish_step()
        saving = sharded.begin_save(path, *self.saved_parts)
        if agree.is_main():  # after the save has begun, because Megatron needs an empty folder
            copy_tokenizer_files(self.folder.config_folder, path)
            write_config(self.folder.config, path, {getattr(torch, self.run.model.dtype)})
        return saving

    def load(self, path: Path) -> None:
        """Restores what `save` wrote, in the same layout, to the bit."""
        sharded.load(path, *self.saved_parts, seed=self.run.seed)

    def load_resharded(self, path: Path) -> None:
        """Restores what `save` wrote in another layout; random states are seeded anew."""
        sharded.load_resharded(path, *self.saved_parts, seed=self.run.seed)

    @property
    def saved_parts(self) -> tuple[Any, ...]:
        """Model chunks, optimizer, schedule, and the reference's weights if it moves: what a checkpoint has."""
        reference = self._reference if self.run.reference_every else []
        return self.chunks, self.optimizer, self.scheduler, reference

    def _finish_step(self) -> None:
        """Gathers the parameters of the last step, which overlap_param_gather leaves to the next forward pass."""
        if self.ddp.overlap_param_gather:
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)


def _write_at_rank_0(plan: GatherPlan, write: Callable[[Iterable[tuple[str, torch.Tensor]]], Any]) -> None:
    stream = plan.at_rank_0()
    if agree.is_main():
        write(stream)
    else:
        for _ in stream:
            pass
    agree.barrier()


def _with_token_values(batch: Batch, name: str, values: Mapping[int, np.ndarray]) -> list[RolloutGroup]:
    return with_field(batch, name, values, [len(r.tokens) for group in batch for r in group.rollouts])
