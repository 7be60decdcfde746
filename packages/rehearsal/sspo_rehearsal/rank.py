"""Runs the trainer's own `Policy` as one rank: it is built, computes log π_old, is updated, exports and saves."""

import gc
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory, is_main_replica

import megatron_sspo.policy  # noqa: F401  lets Megatron run on a CPU
from megatron_sspo.batching.holders import Holders
from megatron_sspo.checkpoint import sharded
from megatron_sspo.objective import Penalties
from megatron_sspo.objective.inputs import needs_of
from megatron_sspo.policy import optimizer
from megatron_sspo.policy.distributed import initialize
from megatron_sspo.policy.forward_step import ForwardStep, report_token_values
from megatron_sspo.policy.head.fused import FusedHead
from megatron_sspo.policy.metrics import UpdateRecord
from megatron_sspo.policy.model import build_chunks
from megatron_sspo.policy.policy import Makers, Policy
from megatron_sspo.policy.schedule import Schedule
from megatron_sspo.policy.weights import make_gather_plan
from megatron_sspo.policy.with_cuda import offload
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.run import Run
from megatron_sspo.weights.fp8 import quantized_names
from megatron_sspo.weights.quantized_plan import QuantizedPlan
from sspo_rehearsal.account import Account, Sent, collectives_of, on_gpu, on_host
from sspo_rehearsal.batch import Workload, make_batch, received_shape, rehearsed_run
from sspo_rehearsal.fake_floats import FakeFloats
from sspo_rehearsal.fake_world import fake_world, known_holders, without_masks, without_storage
from sspo_rehearsal.ledger import HOST, Ledger
from sspo_rehearsal.recorder import Recorder, Route
from sspo_rehearsal.sizes import SizesFolder, num_experts

Say = Callable[[str], None]


def rehearse_rank(
    run: Run, config: Mapping[str, Any], rank: int, work: Workload, route: Route, *, say: Say = lambda line: None
) -> Account:
    """Rehearses one rank of a run in this process.

    Args:
        config: the content of the model's config.json.
        route: the experts that tokens go to.
        say: receives a line as each part begins.
    """
    parallel, received = run.parallel, received_shape(run, work, int(config["hidden_size"]))
    mode = FakeFloats(Ledger(), num_experts(config), route, received=received)
    with fake_world(parallel, rank), without_storage():
        device = initialize(parallel, run.seed)
        try:
            return rehearse_policy(run, config, work, mode, device, say=say, alone=True)
        finally:
            parallel_state.destroy_model_parallel()


def rehearse_policy(
    run: Run,
    config: Mapping[str, Any],
    work: Workload,
    mode: Recorder,
    device: torch.device,
    *,
    say: Say,
    alone: bool = False,
) -> Account:
    """Builds the policy under a mode that keeps a ledger, and runs each part of a cycle once.

    `alone` says whether there are no other processes.
    """
    ledger, seconds, peaks = mode.ledger, {}, {}
    # the reference weights of a KL penalty are on the host, and so are routes until a microbatch is computed
    run = replace(rehearsed_run(run, work), penalties=Penalties(), routing_replay="none", kl_in_reward=0.0)
    # no token has a value here by which the rate could be lowered
    run = replace(run, reference_every=0, optimizer=replace(run.optimizer, full_rate_ess=0.0, full_rate_kl=0.0))

    @contextmanager
    def part(name: str, category: str) -> Iterator[None]:
        say(name)
        begun = time.perf_counter()
        ledger.reset_peak()
        with ledger.during(name), ledger.counted_as(category):
            yield
        seconds[name] = round(time.perf_counter() - begun, 2)
        peaks[name] = on_gpu(ledger.peak)

    with _without_collection(), mode, _host_counted(ledger), without_masks():
        with part("build", "other"):
            trained = Policy(run, Path("sizes"), device, _makers(ledger, run, config, alone=alone))
            _recount_buffers(ledger, trained.chunks)
            weights = (weight for chunk in trained.chunks for weight in chunk.parameters() if not weight.requires_grad)
            ledger.frozen = {weight.untyped_storage()._cdata for weight in weights}
        batch = make_batch(work, needs_of(run.objective))
        resident, host = on_gpu(ledger.live), on_host(ledger.live)
        if run.updates_per_sync > 1 and run.old_policy == "trainer":
            with part("old_log_probs", "activations"):
                trained.old_log_probs(batch)
        step = trained.optimizer.step

        def timed_step() -> Any:
            peaks["update"] = on_gpu(ledger.peak)
            with part("step", "optimizer_step"):
                return step()

        trained.optimizer.step = timed_step
        with part("backward", "activations"):
            trained.update(batch, run.objective)
        with part("gather", "gather"):
            sent = _rehearse_sync(run, trained)
        with part("checkpoint", "checkpoint"):
            written = _written(trained)
    for name in ("build", "backward"):  # the last is "update" and "step"
        del peaks[name]
    return Account(
        rank=torch.distributed.get_rank(),
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        resident=resident,
        host=host,
        peaks=peaks,
        written=written,
        sent_to_servers=sent,
        collectives=collectives_of(ledger),
        flops=dict(ledger.flops),
        memory_traffic=dict(ledger.traffic),
        seconds=seconds,
        process_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _rehearse_sync(run: Run, trained: Policy) -> Sent:
    """Gathers all weights, and returns what is sent to servers: nothing if the engine is in the trainer's processes."""
    gather = trained.weights()
    options = Options(**run.rollouts.options) if run.rollouts.engine == "sglang" else None
    if options is not None and options.quantize:
        gather = QuantizedPlan(gather, quantized_names(trained.folder.rows()))
    if options is None or options.transport == "ipc":  # every rank needs all weights
        for _ in gather:
            pass
        return ()
    if options.transport == "distributed":
        sent: Counter[int] = Counter()
        for part in gather.parts(bucket_bytes=options.bucket_bytes):
            sent[part.rank] += sum(entry.num_bytes for entry in part.entries)
        return tuple(sorted(sent.items()))
    for _ in gather.at_rank_0():
        pass
    return ((0, gather.num_bytes),)


def _written(trained: Policy) -> int:
    """Returns the bytes of model and optimizer that this rank writes into a checkpoint."""
    state = sharded.state_to_save(*trained.saved_parts)
    # a factory becomes several tensors, which together have its data
    tensors = [value for value in nested_values(state) if isinstance(value, (ShardedTensor, ShardedTensorFactory))]
    own = [tensor.data for tensor in tensors if is_main_replica(tensor.replica_id) and tensor.data is not None]
    return sum(data.numel() * data.element_size() for data in own)


@contextmanager
def _host_counted(ledger: Ledger) -> Iterator[None]:
    """Counts what the optimizer has on the host under categories of its own."""
    real = offload.host_empty

    def host_empty(*args: Any, pinned: bool = False, **options: Any) -> torch.Tensor:
        with ledger.counted_as(HOST + ("staging" if pinned else "optimizer")):
            return real(*args, pinned=pinned, **options)

    with patch.object(offload, "host_empty", host_empty):
        yield


@contextmanager
def _without_collection() -> Iterator[None]:
    """Leaves garbage in cycles, which Python would collect at moments that depend on everything else it does."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _makers(ledger: Ledger, run: Run, config: Mapping[str, Any], *, alone: bool) -> Makers:
    """Returns makers whose allocations are booked under a category each, and whose weights have shapes only.

    `alone` says whether there are no other processes from which a rank could learn what they hold.
    """

    def counted(category: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            with ledger.counted_as(category):
                return function(*args, **options)

        return inner

    def during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            # the pass of log π_old is forward only, and keeps its own name
            with ledger.during(phase if ledger.phase == "backward" else ledger.phase):
                return function(*args, **options)

        return inner

    def wrap_in_ddp(transformer: Any, *args: Any) -> list[Any]:
        chunks = optimizer.wrap_in_ddp(transformer, *args)
        transformer.finalize_model_grads_func = during("reduce", transformer.finalize_model_grads_func)
        return chunks

    class Head(FusedHead):
        forward = staticmethod(counted("head", FusedHead.forward))
        backward = staticmethod(counted("head", FusedHead.backward))

    class Step(ForwardStep):
        head = Head
        __call__ = during("forward", ForwardStep.__call__)
        loss_from_hidden = during("forward", ForwardStep.loss_from_hidden)

    class Rehearsed(Schedule):
        """A schedule whose reports have no values."""

        step = Step

        @staticmethod
        def agree_on_holders(rank: int, data_rank: int, *, is_source: bool) -> Holders:
            if alone:
                return Holders(rank, data_rank, [], [])
            return Schedule.agree_on_holders(rank, data_rank, is_source=is_source)

        def token_values(self, rank_batch: Any, names: Any, **options: Any) -> list[dict[int, Any]]:
            self.run(rank_batch, report_token_values, forward_only=True, **options)
            return [{} for _ in names]

        def gather_reports(self, reports: Any) -> list[Any]:
            return []

    def merge_reports(reports: Any, *, order: Any, divisor: float) -> UpdateRecord:
        return UpdateRecord(loss=1.0, tokens={}, sequences={}, order=order)

    return Makers(
        open_folder=lambda path: SizesFolder(config),
        build_chunks=counted("weights", build_chunks),
        wrap_in_ddp=counted("gradients", wrap_in_ddp),
        make_optimizer=counted("optimizer", optimizer.make_optimizer),
        make_gather_plan=partial(make_gather_plan, holders=known_holders(run, config)) if alone else make_gather_plan,
        make_schedule=Rehearsed,
        merge_reports=merge_reports,
    )


def _recount_buffers(ledger: Ledger, chunks: Any) -> None:
    """Counts the parameters, which DDP has moved into buffers of its own, as weights again."""
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            if buffer.param_data is not None:
                ledger.recount_as("weights", buffer.param_data)
