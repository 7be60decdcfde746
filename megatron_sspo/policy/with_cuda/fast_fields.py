"""The fields of Megatron's configurations that are on by default where the kernels that they need are installed."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.tensor_parallel import layers
from megatron.core.transformer.transformer_config import TransformerConfig
from packaging.version import Version

from megatron_sspo.policy.with_cuda.installed import (
    has_apex_wgrad,
    has_transformer_engine,
    transformer_engine_version,
)
from megatron_sspo.run import Parallel

_MODEL_FIELDS = (
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_fusion",
    "apply_rope_fusion",
    "bias_activation_fusion",
    "gradient_accumulation_fusion",
)
_DDP_FIELDS = ("overlap_grad_reduce", "overlap_param_gather")
_CUTLASS = "NVTE_USE_CUTLASS_GROUPED_GEMM"
# before, this kernel reads memory that is not there, and the process dies, if none of a rank's experts has a token
_OLDEST_WITH_EMPTY_GROUPS = "2.17"


def fast_model_fields(architecture: Mapping[str, Any], options: Mapping[str, Any], *, routing_replay: bool) -> dict:
    """Returns the fields of `TransformerConfig` that are on by default; none without Transformer Engine and a GPU.

    A field is left off if Megatron would refuse it together with the user's own fields.

    Args:
        architecture: the model's fields.
        options: the user's fields, which override these.
        routing_replay: whether routes are recorded and replayed. The fused router returns before Megatron looks at
            them (0.16 to 0.19), so that nothing would be replayed, without an error.
    """
    if not has_transformer_engine():
        return {}
    fields = {**architecture, **options}
    has_experts = bool(fields.get("num_moe_experts"))
    is_swiglu = fields.get("activation_func") is F.silu and bool(fields.get("gated_linear_unit"))
    wanted = {
        "moe_grouped_gemm": has_experts,
        "moe_permute_fusion": has_experts,
        "moe_router_fusion": has_experts and not routing_replay and fields.get("moe_router_dtype") != "fp64",
        "apply_rope_fusion": not fields.get("multi_latent_attention"),  # its kernel has no rows with shared prompts
        "bias_activation_fusion": is_swiglu and not fields.get("use_te_activation_func"),
        "gradient_accumulation_fusion": True,
    }
    # the one in which Transformer Engine has sinks
    communication = {"cp_comm_type": "a2a"} if fields.get("softmax_type", "vanilla") != "vanilla" else {}
    return {**_known(TransformerConfig, wanted), **communication}


def fast_ddp_fields(options: Mapping[str, Any], parallel: Parallel) -> dict[str, bool]:
    """Returns the fields of DDP's configuration that are on by default: overlap of its collectives with computation.

    There is nothing to overlap without CUDA's streams, or without ranks that share the gradients.
    """
    if not torch.cuda.is_available() or parallel.data * parallel.context == 1:
        return {}
    overlaps = bool(options.get("overlap_grad_reduce", True))
    gathers = overlaps and bool(options.get("use_distributed_optimizer", True))
    return _known(DistributedDataParallelConfig, {"overlap_grad_reduce": overlaps, "overlap_param_gather": gathers})


def multiply_experts_at_once(transformer: TransformerConfig) -> None:
    """Lets Transformer Engine multiply by the weights of all experts in one kernel of CUTLASS, on Hopper's GPUs.

    By default it starts a kernel of cuBLAS for each expert, and where a rank has many experts the GPU waits for the
    next one. It reads the variable in every product, ignores it on other GPUs, and takes cuBLAS for what CUTLASS does
    not have, such as gradients of weights in float32. A variable that is set already keeps its value.
    """
    if not has_transformer_engine() or not transformer.moe_grouped_gemm:
        return
    if Version(transformer_engine_version()) >= Version(_OLDEST_WITH_EMPTY_GROUPS):
        os.environ.setdefault(_CUTLASS, "1")


def describe_kernels(transformer: TransformerConfig, ddp: DistributedDataParallelConfig) -> str:
    """Returns a line for the start of a run: the kernels, and which fast fields are on; "" without CUDA."""
    if not torch.cuda.is_available():
        return ""
    if not has_transformer_engine():
        return (
            "Transformer Engine is not installed: attention is torch's, experts are computed one after the other, and "
            "training is several times slower; pip install --no-build-isolation 'transformer-engine[pytorch]'"
        )
    on = [name for name in _MODEL_FIELDS if getattr(transformer, name, False)]
    on += [name for name in _DDP_FIELDS if getattr(ddp, name, False)]
    if (
        os.environ.get(_CUTLASS) == "1"
        and transformer.moe_grouped_gemm
        and torch.cuda.get_device_capability() == (9, 0)
    ):
        on.append("CUTLASS for all experts at once")
    return f"Transformer Engine {transformer_engine_version()}, with {', '.join(on) or 'no fused kernels'}"


@contextmanager
def output_layer_without_apex(transformer: TransformerConfig) -> Iterator[None]:
    """Lets Megatron build an output layer with `gradient_accumulation_fusion` where only Transformer Engine has it.

    That layer's own backward pass would need Apex, and Megatron checks for it. Here the pass never runs, because
    `policy/head` computes the gradient itself. All other layers are Transformer Engine's.
    """
    is_needed = transformer.gradient_accumulation_fusion and has_transformer_engine() and not has_apex_wgrad()
    if not is_needed:
        yield
        return
    real = layers._grad_accum_fusion_available
    layers._grad_accum_fusion_available = True
    try:
        yield
    finally:
        layers._grad_accum_fusion_available = real


def _known(kind: type, wanted: Mapping[str, bool]) -> dict[str, bool]:
    """Returns those of the fields that are wanted and that this release of Megatron has."""
    known = {field.name for field in dataclasses.fields(kind)}
    return {name: True for name, is_on in wanted.items() if is_on and name in known}
