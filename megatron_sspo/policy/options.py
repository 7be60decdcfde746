"""The user's own fields of Megatron's dataclasses: `Run.megatron` and `Run.ddp`.

Megatron checks its fields itself. Refused here are those that the trainer sets, and those that would change a gradient
or the model in silence.
"""

import dataclasses
import difflib
import enum
import traceback
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from megatron_sspo.config.naming import describe_value, one_line
from megatron_sspo.config.validate import HintMismatch, convert_to_hint
from megatron_sspo.errors import UserError

T = TypeVar("T")

# fields of TransformerConfig that come from another field of `Run`
_SET_BY = {
    "tensor_model_parallel_size": "parallel.tensor",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "virtual_pipeline_model_parallel_size": "parallel.virtual_pipeline",
    "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert",
    "expert_tensor_parallel_size": "parallel.expert_tensor",
    "sequence_parallel": "parallel.sequence",
    **dict.fromkeys(("params_dtype", "pipeline_dtype", "bf16", "fp16"), "model.dtype"),
    "moe_enable_routing_replay": "routing_replay",
}
_ANOTHER_MODEL = "it makes another model than the one of config.json, which the engine runs"
_ANEW = "it draws anew in every forward pass, so that ρ of an unchanged policy is not 1"
_AT_RANDOM = "it chooses experts at random, whatever the router says"
_LOW_PRECISION = "rows of microbatches have any length, and checkpoints here have no scales"
_FSDP = "it shards parameters, which export and checkpoints here do not"
# fields that would change a gradient or the model in silence, and have to keep their defaults; some are of newer
# releases
_SILENT = {
    "calculate_per_token_loss": "it weights every sequence by its length, which is another objective",
    **dict.fromkeys(("hidden_dropout", "attention_dropout", "moe_input_jitter_eps"), _ANEW),
    **dict.fromkeys(("moe_router_force_load_balancing", "moe_router_force_biased"), _AT_RANDOM),
    **dict.fromkeys(("moe_expert_capacity_factor", "moe_token_dropping"), "the engine drops no tokens"),
    **dict.fromkeys(("softmax_scale", "softmax_type", "window_size", "qk_l2_norm", "use_mup"), _ANOTHER_MODEL),
    **dict.fromkeys(("moe_router_topk_scaling_factor", "moe_router_num_groups"), _ANOTHER_MODEL),
    **dict.fromkeys(("moe_apply_probs_on_input", "moe_mlp_glu_interleave_size"), _ANOTHER_MODEL),
    **dict.fromkeys(("layernorm_zero_centered_gamma", "rotary_interleaved", "no_rope_freq"), _ANOTHER_MODEL),
    **dict.fromkeys(("apply_residual_connection_post_layernorm", "glu_linear_offset"), _ANOTHER_MODEL),
    **dict.fromkeys(("activation_func_clamp_value", "moe_router_enable_expert_bias"), _ANOTHER_MODEL),
    "qk_clip": "only Megatron's own training loop reads what it measures",
    **dict.fromkeys(("delay_wgrad_compute", "defer_embedding_wgrad_compute"), "nothing here computes what it delays"),
    **dict.fromkeys(("fp8", "fp4", "fp8_param_gather", "fp4_param_gather"), _LOW_PRECISION),
    **dict.fromkeys(("use_megatron_fsdp", "use_custom_fsdp"), _FSDP),
    "num_distributed_optimizer_instances": "the optimizer is sharded over all data-parallel ranks",
}
# with latent attention: the first has no rows with shared prompts, the second no weights that folders are read into
_NOT_WITH_LATENTS = ("apply_rope_fusion", "mla_down_proj_fusion")
_NONE: Mapping[str, Any] = {}


def checked_fields(
    kind: type, options: Mapping[str, Any], group: str, architecture: Mapping[str, Any] = _NONE
) -> dict[str, Any]:
    """Returns the options as fields of one of Megatron's dataclasses, each of its annotated type.

    Args:
        group: the field of `Run` that holds the options, for the message.
        architecture: the fields that the model's config.json decides, with their values.

    Raises:
        UserError: this version of Megatron does not have the field, users cannot set it, or a value has another type.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = _hints(kind)
    found = {}
    for name, value in options.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f": did you mean {close[0]}?" if close else ": leave it out"
            raise UserError(f"{group}.{name} is not a field of this megatron-core's {kind.__name__}{hint}")
        if reason := _refusal(name, value, fields[name].default, architecture):
            raise UserError(f"{group}.{name} is {describe_value(value)}, which a recipe cannot set: {reason}")
        try:
            # some defaults do not have the annotated type
            found[name] = value if value is fields[name].default else _fitted(value, hints.get(name, Any))
        except HintMismatch:
            hint = hints[name].__name__ if isinstance(hints[name], type) else str(hints[name]).replace("typing.", "")
            raise UserError(f"{group}.{name} is {describe_value(value)}: Megatron wants {hint}") from None
    return found


def _refusal(name: str, value: Any, default: Any, architecture: Mapping[str, Any]) -> str:
    """Returns why a recipe cannot set a field to a value; "" if it can."""
    if name in _SET_BY:
        return f"it comes from {_SET_BY[name]}, so set that"
    if value == architecture.get(name, default):
        return ""
    if name in _SILENT:
        return f"{_SILENT[name]}, so leave it out"
    if name in _NOT_WITH_LATENTS and architecture.get("multi_latent_attention"):
        return "the trainer's latent attention does not have it, so leave it out"
    return "it comes from the model's config.json, so leave it out" if name in architecture else ""


def construct(kind: type[T], fields: Mapping[str, Any], options: Mapping[str, Any], group: str) -> T:
    """Returns `kind(**fields)`, where the options override the fields.

    Raises:
        UserError: Megatron refuses the result.
    """
    try:
        return kind(**{**fields, **options})
    except Exception as error:  # mostly assertions and ValueErrors; a TypeError if None is compared
        what = f" {group}={describe_value(dict(options))}" if options else ""
        raise UserError(
            f"Megatron refuses the configuration{what}: {_reason(error)}; change it, or parallel.*"
        ) from error


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
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
