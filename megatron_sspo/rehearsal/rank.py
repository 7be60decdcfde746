"""Runs the trainer's own `Policy` as one rank: it is built, computes log π_old, is updated, exports and saves."""

import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory, is_main_replica

import megatron_sspo.policy  # noqa: F401  lets Megatron run on a CPU
from megatron_sspo.checkpoint import sharded
from megatron_sspo.objective import Penalties
from megatron_sspo.objective.inputs import needs_of
from megatron_sspo.policy import forward_step, optimizer, policy, schedule
from megatron_sspo.policy.distributed import initialize
from megatron_sspo.policy.head import fused
from megatron_sspo.policy.metrics import UpdateRecord
from megatron_sspo.rehearsal.account import Account, collectives_of, without_zeros
from megatron_sspo.rehearsal.batch import Workload, make_batch, received_shape, rehearsed_run
from megatron_sspo.rehearsal.books import Books
from megatron_sspo.rehearsal.fake_floats import FakeFloats
from megatron_sspo.rehearsal.fake_world import fake_world, known_shards, without_storage
from megatron_sspo.rehearsal.recorder import Recorder, Route
from megatron_sspo.rehearsal.sizes import SizesFolder, num_experts
from megatron_sspo.rehearsal.sync import rehearse_sync
from megatron_sspo.run import Run

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
    mode = FakeFloats(Books(), num_experts(config), route, received=received)
    with fake_world(parallel, rank), without_storage(), known_shards(run, config):
        device = initialize(parallel, run.seed)
        try:
            return rehearse_policy(run, config, work, mode, device, say=say)
        finally:
            parallel_state.destroy_model_parallel()


def rehearse_policy(
    run: Run, config: Mapping[str, Any], work: Workload, mode: Recorder, device: torch.device, *, say: Say
) -> Account:
    """Builds the policy under a mode that keeps books, and runs each part of a cycle once."""
    books, seconds, peaks = mode.books, {}, {}
    # the reference weights of a KL penalty are on the host, and so are routes until a microbatch is computed
    run = replace(rehearsed_run(run, work), penalties=Penalties(), routing_replay="none")

    @contextmanager
    def part(name: str, category: str) -> Iterator[None]:
        say(name)
        begun = time.perf_counter()
        books.reset_peak()
        with books.during(name), books.counted_as(category):
            yield
        seconds[name] = round(time.perf_counter() - begun, 2)
        peaks[name] = without_zeros(books.peak)

    with _categories(books, config), _without_collection(), mode:
        with part("build", "other"):
            trained = policy.Policy(run, Path("sizes"), device)
            _recount_buffers(books, trained.chunks)
        with part("first_step", "optimizer"):  # makes Adam's moments, which later updates find
            trained.optimizer.step()
        batch = make_batch(work, needs_of(run.objective))
        resident = without_zeros(books.live)
        if run.updates_per_sync > 1 and run.old_policy == "trainer":
            with part("old_log_probs", "activations"):
                trained.old_log_probs(batch)
        step = trained.optimizer.step

        def timed_step() -> Any:
            peaks["update"] = without_zeros(books.peak)
            with part("step", "optimizer_step"):
                return step()

        with patch.object(trained.optimizer, "step", timed_step), part("backward", "activations"):
            trained.update(batch, run.objective)
        with part("gather", "gather"):
            sent = rehearse_sync(run, trained.weights())
        with part("checkpoint", "checkpoint"):
            written = _written(trained)
    for name in ("build", "first_step", "backward"):  # the last is "update" and "step"
        del peaks[name]
    return Account(
        rank=torch.distributed.get_rank(),
        stage=parallel_state.get_pipeline_model_parallel_rank(),
        resident=resident,
        peaks=peaks,
        written=written,
        sent_to_servers=sent,
        collectives=collectives_of(books),
        flops=dict(books.flops),
        memory_traffic=dict(books.traffic),
        seconds=seconds,
        process_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _written(trained: policy.Policy) -> int:
    """Returns the bytes of model and optimizer that this rank writes into a checkpoint."""
    state = sharded.state_to_save(trained.chunks, trained.optimizer, trained.scheduler)
    # a factory becomes several tensors, which together have its data
    tensors = [value for value in nested_values(state) if isinstance(value, (ShardedTensor, ShardedTensorFactory))]
    own = [tensor.data for tensor in tensors if is_main_replica(tensor.replica_id) and tensor.data is not None]
    return sum(data.numel() * data.element_size() for data in own)


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


@contextmanager
def _categories(books: Books, config: Mapping[str, Any]) -> Iterator[None]:
    """Counts the parts of the policy under their own categories and phases, and gives it sizes in place of weights."""
    in_build, in_wrap, in_optimizer = policy.build_chunks, policy.wrap_in_ddp, policy.make_optimizer

    def counted(category: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            with books.counted_as(category):
                return function(*args, **options)

        return inner

    def during(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            # the pass of log π_old is forward only, and keeps its own name
            with books.during(phase if books.phase == "backward" else books.phase):
                return function(*args, **options)

        return inner

    def token_values(self: Any, rank_batch: Any, names: Any, *, record: bool = False) -> list[dict[int, Any]]:
        """Runs the pass, and returns no values."""
        self.run(rank_batch, forward_step.report_token_values, forward_only=True, record=record)
        return [{} for _ in names]

    def merge_reports(reports: Any, *, order: Any, divisor: float) -> UpdateRecord:
        return UpdateRecord(loss=1.0, tokens={}, sequences={}, order=order)

    head = fused._FusedHead
    step = forward_step.ForwardStep
    with ExitStack() as stack:
        for place, name, value in (
            (policy, "open_folder", lambda path: SizesFolder(config)),
            (policy, "build_chunks", counted("weights", in_build)),
            (policy, "wrap_in_ddp", counted("gradients", in_wrap)),
            (policy, "make_optimizer", counted("optimizer", in_optimizer)),
            (policy, "merge_reports", merge_reports),
            (optimizer, "finalize_model_grads", during("reduce", optimizer.finalize_model_grads)),
            (schedule.Schedule, "token_values", token_values),
            (schedule.Schedule, "gather_reports", lambda self, reports: []),
            (step, "__call__", during("forward", step.__call__)),
            (step, "_loss_from_hidden", during("forward", step._loss_from_hidden)),
            (head, "forward", staticmethod(counted("head", head.forward))),
            (head, "backward", staticmethod(counted("head", head.backward))),
        ):
            stack.enter_context(patch.object(place, name, value))
        yield


def _recount_buffers(books: Books, chunks: Any) -> None:
    """Counts the parameters, which DDP has moved into buffers of its own, as weights again."""
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            if buffer.param_data is not None:
                books.recount_as("weights", buffer.param_data)
