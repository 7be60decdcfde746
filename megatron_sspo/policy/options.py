"""The user's own fields of Megatron's dataclasses: `Run.megatron` and `Run.ddp`."""

import dataclasses
import difflib
import enum
import math
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch

from megatron_sspo.config.kinds import Count, Decay, NotNegative
from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.config.validate import HintMismatch, convert_to_hint
from megatron_sspo.errors import UserError

T = TypeVar("T")

_LAYOUT = {
    "tensor_model_parallel_size": "parallel.tensor",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "virtual_pipeline_model_parallel_size": "parallel.virtual_pipeline",
    "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert",
    "expert_tensor_parallel_size": "parallel.expert_tensor",
    "sequence_parallel": "parallel.sequence",
    "params_dtype": "model.dtype",
    "pipeline_dtype": "model.dtype",
    "bf16": "model.dtype",
    "fp16": "model.dtype",
    "moe_enable_routing_replay": "routing_replay",
}
# fields on which the shapes and the meaning of the weights depend
_ARCHITECTURE = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "normalization",
    "gated_linear_unit",
    "activation_func",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "rotary_interleaved",
    "num_moe_experts",
    "moe_ffn_hidden_size",
    "moe_layer_freq",
    "moe_router_topk",
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "mtp_num_layers",
    "multi_latent_attention",
    "layernorm_epsilon",
    "layernorm_zero_centered_gamma",
    "apply_residual_connection_post_layernorm",
    "qk_l2_norm",
    "softmax_scale",
    "softmax_type",
    "window_size",
    "window_attn_skip_freq",
    "no_rope_freq",
    "mrope_section",
    "attention_output_gate",
    "experimental_attention_variant",
    "linear_attention_freq",
    "glu_linear_offset",
    "activation_func_clamp_value",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_topk_limited_devices",
    "moe_router_topk_scaling_factor",
    "moe_router_enable_expert_bias",
    "moe_latent_size",
    "heterogeneous_block_specs",
    "is_hybrid_model",
)
# fields of TransformerConfig that users cannot set -> where the value comes from
_RESERVED = {
    **{name: f"{place}, so set that" for name, place in _LAYOUT.items()},
    **dict.fromkeys(_ARCHITECTURE, "the model's config.json, so leave it out"),
}
# fields that must keep their defaults -> why; some are of newer releases
_FSDP = "it shards parameters, which export and checkpoints here do not"
_LOW_PRECISION = "its products need rows of certain lengths, and checkpoints here have no scales"
_GRAPHS = "a CUDA graph is of one shape, and rows of microbatches differ in length"
_EXPERTS_OVERLAP = "its schedule takes a plan of the forward pass, which the trainer does not make"
# the passes of π_old and of π_θ would draw other numbers
_ANEW = "it draws anew in every forward pass, so that ρ of an unchanged policy is not 1"
_OWN_LOOP = "only Megatron's own training loop reads what it measures"
_LOADED = "weights come from a folder; those of model.init='random' as initializer_range of its config.json says"
_MUST_STAY = {
    **dict.fromkeys(("fp8", "fp4", "fp8_param_gather", "fp4_param_gather"), _LOW_PRECISION),
    **dict.fromkeys(("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph"), _GRAPHS),
    **dict.fromkeys(("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"), _EXPERTS_OVERLAP),
    "ep_overlap_early_attn_memory_release": _EXPERTS_OVERLAP,
    **dict.fromkeys(("qk_clip", "log_max_attention_logit", "moe_per_layer_logging"), _OWN_LOOP),
    **dict.fromkeys(("init_method", "init_method_std", "output_layer_init_method"), _LOADED),
    **dict.fromkeys(("embedding_init_method", "embedding_init_method_std"), _LOADED),
    **dict.fromkeys(("moe_expert_capacity_factor", "moe_token_dropping"), "the engine drops no tokens"),
    "tp_comm_overlap": "its buffers are made for rows of one length, and rows of microbatches differ",
    "defer_embedding_wgrad_compute": "the gradient of the output layer is computed by the trainer's own head",
    "fp32_residual_connection": "layers in bfloat16 do not take its float32 values",
    "use_ring_exchange_p2p": "torch has no ring_exchange",
    "moe_input_jitter_eps": _ANEW,
    "use_mup": "it scales embeddings and logits, which the engine does not",
    "moe_router_force_biased": "it chooses experts at random, whatever the router says",
    "moe_mlp_glu_interleave_size": "it expects the rows of experts' weights in another order",
    "calculate_per_token_loss": "it weights every sequence by its length, which is another objective",
    "use_megatron_fsdp": _FSDP,
    "use_custom_fsdp": _FSDP,
    "moe_router_force_load_balancing": "it chooses experts at random, whatever the router says",
    "hybrid_context_parallel": "its schedule takes microbatches of another form than the trainer's",
    "moe_apply_probs_on_input": "it multiplies the input of an expert by its weight, and the engine the output",
    "num_distributed_optimizer_instances": "the optimizer is sharded over all data-parallel ranks",
    "microbatch_group_size_per_vp_stage": "microbatches come in groups of parallel.pipeline",
    "test_mode": "it compares layers with Transformer Engine's in every forward pass, and trains nothing",
}
# fields that would draw at random, and that 0 turns off
_RANDOM = ("hidden_dropout", "attention_dropout")
# values of `moe_router_load_balancing_type`. Megatron's "sinkhorn" chooses other experts than the engine does, and
# "seq_aux_loss" takes a packed row for one sequence, which makes it "aux_loss".
_BALANCING = ("none", "aux_loss", "global_aux_loss")
# forms of context parallelism; "a2a+p2p" needs groups that the trainer does not make, and Megatron would use none
_CONTEXT = ("p2p", "a2a", "all_gather")
# ranges of values other than None. Megatron's annotations lack them: it would divide by 0 or loop forever.
_RANGES: dict[str, Any] = {
    "hidden_dropout": Decay,
    "attention_dropout": Decay,
    "moe_router_load_balancing_type": Literal[_BALANCING] | list[Literal[_BALANCING]],
    "moe_z_loss_coeff": NotNegative,
    "cp_comm_type": Literal[_CONTEXT] | list[Literal[_CONTEXT]],
    "num_layers_in_first_pipeline_stage": Count,
    "num_layers_in_last_pipeline_stage": Count,
    "recompute_num_layers": Count,
    "num_microbatches_with_partial_activation_checkpoints": Count,
    "bucket_size": Count,
}


def checked_fields(kind: type, options: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Returns the options as fields of one of Megatron's dataclasses, each of its annotated type.

    Args:
        group: the field of `Run` that holds the options, for the message.

    Raises:
        UserError: this version of Megatron does not have the field, users cannot set it, or a value has another type.
    """
    fields = {field.name: field for field in dataclasses.fields(kind) if not field.name.startswith("_")}
    hints = _hints(kind)
    found = {}
    for name, value in options.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f": did you mean {close[0]}?" if close else ": leave it out"
            raise UserError(f"{group}.{name} is not a field of this megatron-core's {kind.__name__}{hint}")
        if name in _RESERVED:
            raise UserError(
                f"{group}.{name} is {describe_value(value)}, which a recipe cannot set: it comes from {_RESERVED[name]}"
            )
        if name in _MUST_STAY and value != (usual := fields[name].default):
            usual = "off" if usual is False else usual
            raise UserError(f"{group}.{name} is {describe_value(value)}, and must stay {usual}: {_MUST_STAY[name]}")
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise HintMismatch("it must be a finite number")
            # some defaults do not have the annotated type
            found[name] = value if value is fields[name].default else _fitted(value, hints.get(name, Any))
        except HintMismatch as error:
            raise UserError(f"{group}.{name} is {describe_value(value)}: {error}") from None
        if name in _RANDOM and value:
            raise UserError(f"{group}.{name} is {describe_value(value)}, and must be off: {_ANEW}; leave it out")
    return found


def construct(kind: Callable[..., T], fields: Mapping[str, Any], options: Mapping[str, Any], group: str) -> T:
    """Returns `kind(**fields, **options)`, where options override fields.

    Raises:
        UserError: Megatron refuses the arguments. If one option is the cause, the message names it.
    """
    try:
        return kind(**{**fields, **options})
    except Exception as error:  # mostly assertions and ValueErrors; a TypeError if None is compared
        reason = _reason(error)
    for name in sorted(options, key=lambda name: name not in reason):  # first those that Megatron's message names
        others = {key: other for key, other in options.items() if key != name}
        try:
            kind(**{**fields, **others})
        except Exception:
            continue
        raise UserError(
            f"{group}.{name} is {describe_value(options[name])}, and Megatron refuses the configuration: {reason}"
        )
    what = f" {group}={describe_value(dict(options))}" if options else ""
    raise UserError(f"Megatron refuses the configuration{what}: {reason}; change it, or parallel.*")


@contextmanager
def model_errors(options: Mapping[str, Any], group: str) -> Iterator[None]:
    """A context manager for the construction of the model, which finds errors that `construct` does not find.

    Args:
        options: the user's own fields. Without any, an error is no user's, and is not changed.
        group: the field of `Run` that holds them, for the message.

    Raises:
        UserError: Megatron cannot build the model, for example because a field needs CUDA or Transformer Engine.
    """
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not options:
            raise
        raise UserError(
            f"Megatron cannot build the model with {group}={describe_value(dict(options))}: {_reason(error)}; change "
            "or leave out the field that this names"
        ) from error


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind) | _RANGES
    except Exception:  # an annotation has a name that only type checkers can resolve
        return {}


def _fitted(value: Any, hint: Any) -> Any:
    """Returns `convert_to_hint(value, hint)`; a member of an enumeration may be given by its name, as `--set` must."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum) and isinstance(value, str) and value in hint.__members__:
        return hint[value]
    return convert_to_hint(value, hint)


def _reason(error: Exception) -> str:
    text = one_line(str(error)).rstrip(".")
    if "'NoneType' and 'Version'" in text:
        return "it needs Transformer Engine, which is not installed"
    if text:
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1]  # an assertion without a message: its source line
    return one_line(frame.line or type(error).__name__)
