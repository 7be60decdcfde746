"""Runs batches through Megatron's pipeline schedule: a batch is scattered and packed, and its results are gathered."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_sspo.batching.context import num_parts, round_up
from megatron_sspo.batching.holders import Holders, with_rollouts
from megatron_sspo.batching.microbatch import Microbatch, make_microbatch
from megatron_sspo.batching.plan import Packing, Plan, prompt_variants, sharing_candidates
from megatron_sspo.batching.row import Sequences
from megatron_sspo.policy.forward_step import ForwardStep, Loss, report_token_values
from megatron_sspo.policy.router_load import RouterLoad
from megatron_sspo.policy.shared_prompts.rules import SHARING_COST
from megatron_sspo.policy.with_cuda.installed import has_transformer_engine
from megatron_sspo.policy.work import work_of
from megatron_sspo.processes import agree
from megatron_sspo.run import Run
from megatron_sspo.types import Batch, RolloutGroup, rollouts_of

if TYPE_CHECKING:
    from megatron_sspo.policy.routing_replay import Mode, RoutingReplay

Report = dict[str, Any]


@dataclass(frozen=True)
class RankBatch:
    """The part of a batch that this rank computes."""

    sequences: Sequences  # of the whole batch
    members: Sequence[Sequence[int]]  # indices of the sequences in each of this rank's microbatches
    order: Sequence[int]  # indices of all sequences, in the order of the gathered reports
    microbatches: Sequence[Microbatch]


class Schedule:
    """Runs batches through model chunks, with the schedule that Megatron has for the layout.

    Building one is a collective.

    Args:
        chunks: the model chunks, wrapped in DDP unless there are no backward passes.
        vocab_size: the vocabulary size without padding.
        share_prompts: whether sequences of a group may share their prompt in a row.
    """

    step: type[ForwardStep] = ForwardStep

    def __init__(
        self,
        run: Run,
        transformer: TransformerConfig,
        chunks: Sequence[Any],
        vocab_size: int,
        routing: "RoutingReplay | None",
        load: RouterLoad | None,
        *,
        share_prompts: bool,
    ) -> None:
        self.share_prompts = share_prompts
        self._chunks = list(chunks)
        self._vocab_size = vocab_size
        self._temperature = run.rollouts.sampling.temperature
        self._parallel = run.parallel
        self._routing = routing
        self._load = load
        self._tensor_shards = run.parallel.tensor if run.parallel.sequence else 1
        # a section of a row and a microbatch must divide evenly over context- and tensor-parallel ranks
        section_multiple = num_parts(run.parallel.context)
        self._length = round_up(run.tokens_per_microbatch, section_multiple * self._tensor_shards)
        self._packing = Packing(
            num_ranks=parallel_state.get_data_parallel_world_size(),
            max_tokens=run.tokens_per_microbatch,
            section_multiple=section_multiple,
            multiple_of=run.parallel.pipeline if run.parallel.virtual_pipeline > 1 else 1,
            work=work_of(transformer),
            sharing_cost=SHARING_COST if has_transformer_engine() else 1.0,
        )
        # a batch is planned once for its scattering and its passes; the updates of a cycle are rarely more than 16
        self._plan_of = lru_cache(maxsize=16)(self._packing.plan)
        self._fixed_length = not transformer.variable_seq_lengths
        is_first = parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_context_parallel_rank() == 0
        self._holders = self.agree_on_holders(
            dist.get_rank(),
            parallel_state.get_data_parallel_rank(),
            is_source=is_first and parallel_state.is_pipeline_last_stage(ignore_virtual=True),
        )

    @staticmethod
    def agree_on_holders(rank: int, data_rank: int, *, is_source: bool) -> Holders:
        """Returns the ranks that compute the sequences of each data-parallel rank. A collective."""
        return Holders.agree(rank, data_rank, is_source=is_source)

    def scatter(self, batch: Batch) -> list[RolloutGroup]:
        """Returns the batch with the contents that this rank computes, sent by rank 0. A collective."""
        has_routes = any(rollout.routes is not None for rollout in rollouts_of(batch))
        if self.share_prompts and self._routing and has_routes:
            found = prompt_variants(batch, self._routing.shape) if agree.is_main() else []
            rollouts = rollouts_of(batch)
            variants = zip(rollouts, agree.broadcast_from_rank_0(found), strict=True)
            batch = with_rollouts(batch, [replace(rollout, prompt_variant=variant) for rollout, variant in variants])
        return self._holders.scatter(batch, _indices(self._plan(batch)))

    def _plan(self, batch: Batch) -> Plan:
        return self._plan_of(tuple(sharing_candidates(batch)), share_prompts=self.share_prompts)

    def rank_batch(self, batch: Batch, *, replay: bool = True) -> RankBatch:
        """Returns this rank's part of the batch. Ranks of the same data-parallel rank get the same sequences.

        Args:
            replay: whether routes that the rollouts carry are to be replayed.
        """
        sequences = [(group.prompt.tokens, rollout) for group in batch for rollout in group.rollouts]
        plan, data_rank = self._plan(batch), parallel_state.get_data_parallel_rank()
        indices = _indices(plan)
        members = indices[data_rank]
        has_routes = any(rollout.routes is not None for _, rollout in sequences)
        microbatches = [  # on the host until `ForwardStep` takes one: routes are 384 bytes a token in Qwen3-30B-A3B
            make_microbatch(
                [sequences[i] for i in chosen],
                sharing=[len(part) for part in parts],
                tensor_shards=self._tensor_shards,
                context_rank=parallel_state.get_context_parallel_rank(),
                context_size=self._parallel.context,
                num_tokens=self._length if self._fixed_length else None,
                router=self._routing.shape if self._routing and replay and has_routes else None,
            )
            for chosen, parts in zip(members, plan[data_rank], strict=True)
        ]
        order = [i for of_rank in indices for chosen in of_rank for i in chosen]
        return RankBatch(sequences, members, order, microbatches)

    def run(
        self, rank_batch: RankBatch, loss: Loss, *, forward_only: bool, record: bool = False, top_k: int = 0
    ) -> list[Report]:
        """Returns the loss function's report of each microbatch on the last pipeline stage, and no reports elsewhere.

        Args:
            record: whether to record the routes that the tokens take.
            top_k: the number of likeliest tokens of which the loss function gets the log-probs.
        """
        step = self.step(
            loss=loss,
            temperature=self._temperature,
            vocab_size=self._vocab_size,
            routing=self._routing,
            load=self._load,
            overlap_grad_reduce=not forward_only and self._chunks[0].ddp_config.overlap_grad_reduce,
            top_k=top_k,
        )
        microbatches = rank_batch.microbatches
        mode: Mode | None = "record" if record else "replay" if microbatches[0].routes is not None else None
        iterators = [iter(microbatches) for _ in self._chunks]
        run_schedule: Callable[..., Any] = get_forward_backward_func()
        with self._routing.schedule(mode) if self._routing else nullcontext():
            return run_schedule(
                forward_step_func=step,
                data_iterator=iterators if len(iterators) > 1 else iterators[0],
                model=self._chunks if len(self._chunks) > 1 else self._chunks[0],
                num_microbatches=len(microbatches),
                seq_length=self._length,
                micro_batch_size=1,
                forward_only=forward_only,
            )

    def token_values(
        self, rank_batch: RankBatch, names: Sequence[str], *, record: bool = False, top_k: int = 0
    ) -> list[dict[int, np.ndarray]]:
        """Returns values of π_θ at the responses that this rank holds, by index, with 0 at tokens of an environment.

        Args:
            names: `log_probs` and `entropy`, in the order in which they are returned; with `top_k` also `top_log_probs`
                and `top_tokens`, of which each token has k.
        """
        reports = self.run(rank_batch, report_token_values, forward_only=True, record=record, top_k=top_k)
        return [self._holders.spread(_by_index(rank_batch, reports, name)) for name in names]

    def gather_routes(self, rank_batch: RankBatch) -> tuple[dict[int, np.ndarray], list[int]]:
        """Returns the routes of the sequences that this rank holds, by index, after a run that recorded them.

        The second result is the number of choices of every sequence of the batch.
        """
        assert self._routing is not None
        lengths = [len(prompt) + len(rollout.tokens) for prompt, rollout in rank_batch.sequences]
        shape = self._routing.shape
        found = self._routing.gather_routes(rank_batch.members, rank_batch.microbatches, lengths, self._holders)
        return found, [length * shape.num_layers * shape.topk for length in lengths]

    def gather_reports(self, reports: list[Report]) -> list[Report]:
        """Returns all ranks' reports in the order of `RankBatch.order` on rank 0, and none on other ranks."""
        parts = self._holders.collect([_to_cpu(report) for report in reports])
        return [report for part in parts for report in part]


def _indices(plan: Plan) -> list[list[list[int]]]:
    """Returns the indices of the sequences in each microbatch of each data-parallel rank."""
    return [[[i for part in parts for i in part] for parts in of_rank] for of_rank in plan]


def _by_index(rank_batch: RankBatch, reports: Sequence[Report], name: str) -> dict[int, np.ndarray]:
    """Returns the values of each response by its index, with 0 at tokens of an environment."""
    found: dict[int, np.ndarray] = {}
    for members, report in zip(rank_batch.members, reports, strict=False):  # only the last stage has reports
        lengths = [rank_batch.sequences[i][1].num_response_tokens for i in members]
        for index, values in zip(members, report[name].cpu().split(lengths), strict=True):
            mask = rank_batch.sequences[index][1].response_mask()
            own = values.numpy()
            of_tokens = np.zeros((len(mask), *own.shape[1:]), own.dtype)
            of_tokens[mask] = own
            found[index] = of_tokens.reshape(-1)
    return found


def _to_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    return value.cpu()
