"""The memory of a rank: weights, gradients, optimizer, activations, logits, and the embedded engine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from megatron_sspo.memory import activations
from megatron_sspo.memory.head import head_bytes
from megatron_sspo.memory.parameters import (
    ParameterCount,
    count_all,
    count_per_stage,
    layers_of_stages,
    padded_vocab_size,
)
from megatron_sspo.run import Parallel, Run
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.open_folder import read_config_of
from megatron_sspo.weights.fp8 import quantized_names
from megatron_sspo.weights.lora import factor_rows

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
# CUDA's context, NCCL's buffers and fragmentation: a round number, not a measured one.
CUDA_ALLOWANCE = 6 * 10**9
_STAGING = 4 * 4 * 2**24  # two buffers in each direction (`policy/with_cuda/offload.py`)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on a rank of one pipeline stage.

    Attributes:
        weights: in the model's dtype; optimizer: main weights and two moments on the GPU.
        gradients: DDP's buffers; if these are of 16 bits, also float32 copies of what the rank updates.
        activations: what all microbatches in flight keep for their backward passes.
        layer: what a layer needs while it is computed, beyond what it keeps; if it is recomputed, all that it needs.
        logits: the head's blocks and tiles, never all logits at once. The head and a layer are not computed at the same
            time, so only the larger of `layer` and `logits` counts.
        engine: weights and key-value cache of the embedded engine; 0 if servers generate.
        teacher: a GPU's part of the teacher's weights while it computes log-probs. There are no activations for a
            backward pass then, so only the larger of `teacher` and `activations` counts.
        allowance: an allowance for CUDA and NCCL.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    layer: int
    logits: int
    engine: int = 0
    teacher: int = 0
    allowance: int = 0

    @property
    def total(self) -> int:
        never_at_once = min(self.layer, self.logits) + min(self.activations, self.teacher)
        return sum(vars(self).values()) - never_at_once


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Bytes of the host's memory that a rank needs.

    Attributes:
        optimizer: the share of main weights and moments that is there (`Optimizer.offload`).
        staging: pinned buffers of gradients and weights on their way.
        reference: the weights of a reference policy, and the policy's while they take their place.
        teacher: the weights of the teacher.
        checkpoint: the rank's share of weights and optimizer while a checkpoint is saved
            (`checkpoint/optimizer_state.py`).
        last_sync: the copy of the weights of the last sync that rank 0 alone has (`rollouts.options.delta`).
    """

    optimizer: int
    staging: int
    reference: int
    teacher: int
    checkpoint: int
    last_sync: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def of_host(self, num_ranks: int) -> int:
        """Returns what ranks of a host need, one of which may be rank 0."""
        return num_ranks * (self.total - self.last_sync) + self.last_sync

    def describe(self, num_ranks: int) -> str:
        """Returns what ranks of a host need of its memory, in words and by parts."""
        words = {
            "optimizer": "for the optimizer",
            "staging": "for copies on their way",
            "reference": "for the reference weights",
            "teacher": "for the teacher",
            "checkpoint": "while a checkpoint is saved",
            "last_sync": "for the weights of the last sync",
        }
        parts = ", ".join(f"{size / 1e9:.1f} GB {words[name]}" for name, size in vars(self).items() if size)
        return (
            f"a rank needs {self.total / 1e9:.1f} GB of its host's memory ({parts}), {num_ranks} ranks "
            f"{self.of_host(num_ranks) / 1e9:.0f} GB"
        )


@dataclass(frozen=True)
class ServerMemory:
    """The memory of SGLang's servers: bytes of weights per GPU, and of the key-value cache per token and GPU.

    The scales of FP8 weights, four bytes for each block of 128 × 128, are not counted.
    """

    weights: int
    cache_per_token: int


def estimate(run: Run, config: Mapping[str, Any], *, on_cuda: bool) -> list[MemoryEstimate]:
    """Estimates the memory of a rank of each pipeline stage.

    Microbatches are assumed to be full, of response tokens only, and experts to be used equally. "Selective"
    recomputation is treated as none. What is on the host is not counted: see `host_memory`.

    Args:
        config: the content of the model's config.json.
        on_cuda: whether the run uses GPUs with Transformer Engine's layers; otherwise it is estimated for CPUs.

    Raises:
        UserError: the model is not supported, or the layout cannot shard it.
    """
    parallel, architecture = run.parallel, load_family(config).transformer_fields(config)
    counts = count_per_stage(config, parallel, run.megatron)
    trained = _count_trained(run, config)
    layers = layers_of_stages(architecture["num_layers"], parallel, run.megatron)
    itemsize = ITEMSIZE[run.model.dtype]
    gradient_itemsize = 4 if run.ddp.get("grad_reduce_in_fp32", True) else itemsize
    of_copies = 4 if gradient_itemsize == 2 else 0  # which a step makes, and the next update frees
    state_itemsize = 8 if itemsize == 4 else 12  # two moments, and main weights for a 16-bit model
    on_gpu = 1 - run.optimizer.offload
    # Transformer Engine has no masks, and copies of keys are made again for the backward pass
    shares = not on_cuda and run.share_prompts is not False and not architecture.get("linear_attention_freq")
    patterns = [architecture.get(name) for name in ("moe_layer_freq", "linear_attention_freq")]

    def sizes_of(layer: int) -> activations.Sizes:
        with_experts, with_net = (
            pattern[min(layer, len(pattern) - 1)] if isinstance(pattern, list) else pattern for pattern in patterns
        )
        return activations.sizes(
            {
                **architecture,
                "num_moe_experts": architecture.get("num_moe_experts") if with_experts else None,
                "linear_attention_freq": with_net,
            },
            parallel,
            run.tokens_per_microbatch,
            run.prompts.max_tokens,
            run.rollouts.sampling.max_tokens,
            run.rollouts.group_size if shares else 1,
        )

    sizes = sizes_of(architecture["num_layers"] - 1)
    teacher, found = _teacher_bytes(run), []
    for stage, count in enumerate(counts):
        updated = _num_optimizer_parameters(run, trained[stage])
        is_last = stage == len(counts) - 1
        kept, working = _activations(run, [*map(sizes_of, layers[stage])], stage, itemsize, use_te=on_cuda)
        logits = 0
        if is_last:
            kept += activations.norm_bytes(sizes.rows, sizes.hidden, 1, itemsize, use_te=on_cuda)
            columns = padded_vocab_size(int(config["vocab_size"]), parallel.tensor) // parallel.tensor
            logits = head_bytes(sizes.inner_rows, columns, sizes.hidden, itemsize, on_cuda=on_cuda)
        found.append(
            MemoryEstimate(
                weights=itemsize * (count.total + (trained[stage].total if run.lora else 0)),
                gradients=gradient_itemsize * trained[stage].total + of_copies * updated,
                optimizer=round(on_gpu * state_itemsize * updated),
                activations=kept,
                layer=working,
                logits=logits,
                engine=_engine_bytes(run, config),
                teacher=teacher[stage] if on_cuda else 0,
                allowance=CUDA_ALLOWANCE if on_cuda else 0,
            )
        )
    return found


def _count_trained(run: Run, config: Mapping[str, Any]) -> list[ParameterCount]:
    """Counts the parameters with gradients on a rank of each pipeline stage: all, or those of adapters."""
    if run.lora is None:
        return count_per_stage(config, run.parallel, run.megatron)
    of = partial(factor_rows, targets=run.lora.targets, rank=run.lora.rank)
    return count_per_stage(config, run.parallel, run.megatron, of=of)


def checkpoint_bytes(run: Run, config: Mapping[str, Any]) -> int:
    """Returns the size of a checkpoint: what is trained, a reference that moves, and in float32 masters and moments."""
    whole = _count_trained(replace(run, parallel=Parallel(), megatron={}), config)
    return _saved_bytes(run) * sum(count.total for count in whole)


def _saved_bytes(run: Run) -> int:
    """Returns what a checkpoint has of a parameter."""
    return ITEMSIZE[run.model.dtype] * (2 if run.reference_every else 1) + 12


def host_memory(run: Run, config: Mapping[str, Any]) -> HostMemory:
    """Returns the memory of the host that a rank needs beside that of its GPU, in the stage that needs most.

    Shares of a checkpoint are taken to be equal; one rank may have up to the model's largest tensor and its state in
    addition. Raises UserError if the model is not supported, or the layout cannot shard it.
    """
    itemsize, offload = ITEMSIZE[run.model.dtype], run.optimizer.offload
    of_reference = itemsize if run.needs_reference and run.lora is None else 0
    of_last_sync = _sent_bytes(run, config, itemsize) if run.rollouts.options.get("delta") else 0
    stages = []
    for count, teacher in zip(_count_trained(run, config), _teacher_bytes(run), strict=True):
        updated = _num_optimizer_parameters(run, count)
        stages.append(
            HostMemory(
                optimizer=round(12 * offload * updated),
                staging=_STAGING if offload else 0,
                reference=2 * of_reference * count.total,
                teacher=teacher,
                checkpoint=_saved_bytes(run) * updated,
                last_sync=of_last_sync,
            )
        )
    return max(stages, key=lambda stage: stage.total)


def _teacher_bytes(run: Run) -> list[int]:
    """Returns the size of the teacher's weights on a rank of each pipeline stage; 0 without a teacher."""
    if not run.held_teacher:
        return [0] * run.parallel.pipeline
    config = read_config_of(Path(run.held_teacher))
    counts = count_per_stage(config, run.parallel, {})
    return [ITEMSIZE[run.model.dtype] * count.total for count in counts]


def model_bytes(run: Run, config: Mapping[str, Any]) -> int:
    """Returns the size of the model's Hugging Face folder."""
    return ITEMSIZE[run.model.dtype] * count_all(config).total


def server_memory(run: Run, config: Mapping[str, Any]) -> ServerMemory:
    """Returns the memory of a server's GPU, with weights and cache of a type; an unknown one has two bytes."""
    server = run.rollouts.options.get("server") or {}
    tp_size, itemsize = int(server.get("tp_size", 1)), ITEMSIZE.get(str(server.get("dtype", run.model.dtype)), 2)
    is_latent = load_family(config).transformer_fields(config).get("multi_latent_attention")  # every GPU keeps it whole
    cache = cache_bytes(config, itemsize) // (1 if is_latent else tp_size)
    return ServerMemory(_sent_bytes(run, config, itemsize) // tp_size, cache)


def _sent_bytes(run: Run, config: Mapping[str, Any], itemsize: int) -> int:
    """Returns the size of the weights that servers are given; those that are quantized have one byte an element."""
    rows = load_family(config).rows(config, int(config["vocab_size"]))
    in_bytes = quantized_names(rows) if run.rollouts.options.get("quantize") == "fp8" else set[str]()
    shapes = [pair for row in rows for pair in zip(row.hf, row.hf_shapes, strict=True)]
    return sum(math.prod(shape) * (1 if name in in_bytes else itemsize) for name, shape in shapes)


def cache_bytes(config: Mapping[str, Any], itemsize: int) -> int:
    """Returns the size of the key-value cache per token."""
    fields = load_family(config).transformer_fields(config)
    if fields.get("multi_latent_attention"):  # engines keep the latent and the turned part of the keys
        return fields["num_layers"] * (fields["kv_lora_rank"] + fields["qk_pos_emb_head_dim"]) * itemsize
    layers = fields["num_layers"] - sum(fields.get("linear_attention_freq") or ())
    return 2 * layers * fields["num_query_groups"] * fields["kv_channels"] * itemsize


def _activations(
    run: Run, layers: Sequence[activations.Sizes], stage: int, itemsize: int, *, use_te: bool
) -> tuple[int, int]:
    """Returns what the microbatches in flight keep, and what a layer needs in addition while it is computed.

    `layers` has the sizes of each layer of the stage.
    """
    num_layers, sizes = len(layers), layers[-1]
    full = sum(activations.layer_bytes(each, itemsize, use_te=use_te) for each in layers) // num_layers
    boundary = sizes.rows * sizes.hidden * itemsize  # a layer's input, which is all that is kept of a recomputed one
    working = max(activations.working_bytes(each, itemsize, use_te=use_te) for each in layers)
    in_flight = _layers_in_flight(run.parallel, num_layers, stage)
    chunks = in_flight * run.parallel.virtual_pipeline / num_layers
    # cosines and sines of the rotary embedding, which all layers of a model chunk keep together
    rotations = round(chunks * sizes.inner_rows * sizes.head_dim * itemsize)
    if run.megatron.get("recompute_granularity") != "full":
        return round(in_flight * full) + rotations, working
    count = int(run.megatron.get("recompute_num_layers") or 1)
    if run.megatron.get("recompute_method") == "block":
        recomputed = min(count, num_layers) / num_layers
        return round(in_flight * (recomputed * boundary + (1 - recomputed) * full)) + rotations, full + working
    return round(in_flight / count * boundary) + rotations, min(count, num_layers) * full + working


def _layers_in_flight(parallel: Parallel, num_layers: int, stage: int) -> float:
    """Returns the largest number of layers × microbatches whose backward passes are pending in the stage's schedule."""
    ahead, virtual = parallel.pipeline - stage - 1, parallel.virtual_pipeline
    if virtual == 1:
        return num_layers * (ahead + 1)
    return num_layers / virtual * (2 * ahead + (virtual - 1) * parallel.pipeline + 1)


def _num_optimizer_parameters(run: Run, count: ParameterCount) -> int:
    """Returns the number of a stage's parameters whose optimizer state one rank holds, and writes."""
    parallel = run.parallel
    if not run.ddp.get("use_distributed_optimizer", True):
        return count.total
    dense_ranks = parallel.data * parallel.context
    expert_ranks = dense_ranks * parallel.tensor // (parallel.expert * parallel.expert_tensor)
    return count.dense // dense_ranks + count.experts // expert_ranks


def _engine_bytes(run: Run, config: Mapping[str, Any]) -> int:
    """Returns the size of the embedded engine's float32 weights, and of its cache for the responses decoded at once."""
    if run.rollouts.engine != "embedded":
        return 0
    rollouts, parallel = run.rollouts, run.parallel
    responses = rollouts.prompts_per_update * rollouts.group_size * run.updates_per_sync
    at_once = min(int(rollouts.options.get("max_batch_size", 256)), -(-responses // parallel.num_processes))
    tokens = at_once * (run.prompts.max_tokens + rollouts.sampling.max_tokens)
    return 4 * count_all(config).total + cache_bytes(config, 4) * tokens
