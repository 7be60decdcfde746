"""Builds Megatron's GPTModel from a Hugging Face configuration."""

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import RowParallelLinear, set_tensor_model_parallel_attributes
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from megatron_sspo.errors import UserError
from megatron_sspo.memory.parameters import check_divisibility, padded_vocab_size
from megatron_sspo.policy.layers import latent_attention
from megatron_sspo.policy.layers.attention import NormOfKeys, NormOfQueries, PackedAttention, RMSNorm
from megatron_sspo.policy.layers.gated_delta_net import put_delta_nets
from megatron_sspo.policy.options import checked_fields, construct
from megatron_sspo.policy.shared_prompts.rotary import RowRotaryEmbedding, SharedRotaryEmbedding
from megatron_sspo.policy.with_cuda.fast_fields import fast_model_fields, output_layer_without_apex
from megatron_sspo.policy.with_cuda.installed import has_transformer_engine
from megatron_sspo.run import Parallel
from megatron_sspo.weights.family import Family


def transformer_config(
    family: Family,
    config: Mapping[str, Any],
    parallel: Parallel,
    dtype: torch.dtype,
    options: Mapping[str, Any],
    *,
    routing_replay: bool = False,
) -> TransformerConfig:
    """Returns the model's architecture and its layout as Megatron's TransformerConfig.

    The user's own fields, `options`, override everything here but sizes and layout.

    Raises:
        UserError: an option is wrong (see `checked_fields`), Megatron refuses the layout, or an option would change the
            model in silence.
    """
    architecture = family.transformer_fields(config)
    kind = MLATransformerConfig if architecture.get("multi_latent_attention") else TransformerConfig
    options = checked_fields(kind, options, "megatron", architecture)
    check_divisibility(architecture, parallel, options)
    fields = {
        **architecture,
        "transformer_impl": "transformer_engine" if has_transformer_engine() else "local",
        **_layout_fields(parallel, dtype, options),
        **_expert_fields(architecture, parallel, options, routing_replay=routing_replay),
    }
    fields |= fast_model_fields(fields, options, routing_replay=routing_replay)
    transformer = construct(kind, fields, options, "megatron")
    _check_values(transformer, parallel, norm_of_all_heads="norm_of_all_heads" in family.model_fields(config))
    return transformer


def _check_values(transformer: TransformerConfig, parallel: Parallel, *, norm_of_all_heads: bool) -> None:
    """Raises a UserError for values with which Megatron would train another model, or without a loss, in silence."""
    chunks = transformer.virtual_pipeline_model_parallel_size or 1
    if chunks != parallel.virtual_pipeline:
        raise UserError(
            f"megatron.pipeline_model_parallel_layout has {chunks * parallel.pipeline} parts, and the layout "
            f"{parallel.virtual_pipeline * parallel.pipeline}: set parallel.virtual_pipeline={chunks}, or give it one "
            "part for each stage"
        )
    kinds, coefficients = map(_as_list, (transformer.moe_router_load_balancing_type, transformer.moe_aux_loss_coeff))
    # "sinkhorn" chooses other experts than the engine does; "seq_aux_loss" takes a packed row for one sequence
    is_known = set(kinds) <= {"none", "aux_loss", "global_aux_loss"} and len(kinds) == len(coefficients)
    pairs = zip(kinds, coefficients, strict=False)
    if transformer.num_moe_experts and not (is_known and all((k != "none") == (c > 0) for k, c in pairs)):
        raise UserError(
            f"megatron.moe_router_load_balancing_type is {kinds} and megatron.moe_aux_loss_coeff is {coefficients}: a "
            "loss has both one of the types aux_loss and global_aux_loss, and a coefficient above 0"
        )
    if transformer.linear_attention_freq is not None and parallel.context > 1:
        raise UserError(
            "parallel.context is above 1, and the model has gated delta nets, whose state passes from token to token: "
            "set it to 1"
        )
    groups = transformer.num_query_groups or transformer.num_attention_heads
    if (transformer.attention_output_gate or norm_of_all_heads) and parallel.tensor > groups:
        what = "a norm of all heads together" if norm_of_all_heads else "an output gate"
        raise UserError(
            f"parallel.tensor is {parallel.tensor}, and the model's attention has {what} and {groups} key-value heads, "
            "which are divided over no more ranks than heads: lower parallel.tensor"
        )
    # "a2a+p2p" needs groups that the trainer does not make, and Megatron would use none
    if not set(_as_list(transformer.cp_comm_type)) <= {None, "p2p", "a2a", "all_gather"}:
        raise UserError(
            f"megatron.cp_comm_type is {transformer.cp_comm_type!r}: choose p2p, a2a or all_gather for each layer"
        )
    has_sinks = transformer.softmax_type != "vanilla"
    if parallel.context > 1 and has_sinks and not set(_as_list(transformer.cp_comm_type)) <= {None, "a2a"}:
        raise UserError(
            f"megatron.cp_comm_type is {transformer.cp_comm_type!r}, and the model's attention has sinks, which "
            "Transformer Engine computes with a2a alone: leave it out"
        )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _layout_fields(parallel: Parallel, dtype: torch.dtype, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the layout and the dtype, and fusions that need CUDA, which are off."""
    interleaved = parallel.virtual_pipeline > 1
    return {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "virtual_pipeline_model_parallel_size": parallel.virtual_pipeline if interleaved else None,
        "context_parallel_size": parallel.context,
        "expert_model_parallel_size": parallel.expert,
        "expert_tensor_parallel_size": parallel.expert_tensor,
        "sequence_parallel": parallel.sequence,
        # packed microbatches differ in length; for a dispatcher that cannot handle this, they are padded to one length
        "variable_seq_lengths": options.get("moe_token_dispatcher_type", "alltoall") != "allgather",
        "moe_token_dispatcher_type": "alltoall",  # Megatron needs it for variable_seq_lengths, even without experts
        "batch_p2p_comm": not interleaved,  # two sends per step between the same two ranks cannot be batched
        "overlap_p2p_comm": interleaved,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "bias_dropout_fusion": False,
        "moe_permute_fusion": False,
    }


def _expert_fields(
    architecture: Mapping[str, Any], parallel: Parallel, options: Mapping[str, Any], *, routing_replay: bool
) -> dict[str, Any]:
    """Returns the fields of the routers; none for a model without experts."""
    if not architecture.get("num_moe_experts"):
        if routing_replay:
            raise UserError("routing_replay is on, and the model has no experts to replay: set it to none")
        return {}
    if parallel.tensor > 1 and not parallel.sequence:
        raise UserError("experts under parallel.tensor > 1 need parallel.sequence=true: Megatron requires it")
    if routing_replay and options.get("moe_router_fusion"):
        raise UserError(
            "megatron.moe_router_fusion is true with routing_replay: the fused router ignores the routes to "
            "replay, so leave one of them out"
        )
    return {
        "moe_router_load_balancing_type": "none",  # an auxiliary loss is not part of the objective
        "moe_aux_loss_coeff": 0.0,
        "moe_router_bias_update_rate": 0.0,  # so that routes change by gradients alone
        "moe_router_dtype": "fp32",
        "moe_enable_routing_replay": routing_replay,
    }


def build_chunks(
    family: Family, config: Mapping[str, Any], transformer: TransformerConfig, *, share_prompts: bool = False
) -> list[GPTModel]:
    """Builds this process's part of the model, without weights: one GPTModel per virtual pipeline stage."""
    virtual = transformer.virtual_pipeline_model_parallel_size
    fields = dict(family.model_fields(config))
    frequencies, norm_of_all_heads = fields.pop("rotary_frequencies", None), fields.pop("norm_of_all_heads", False)
    fields["vocab_size"] = padded_vocab_size(fields["vocab_size"], transformer.tensor_model_parallel_size)
    chunks = []
    for stage in range(virtual) if virtual else [None]:
        spec = get_gpt_decoder_block_spec(
            transformer, use_transformer_engine=has_transformer_engine(), normalization="RMSNorm", vp_stage=stage
        )
        if not has_transformer_engine():
            _replace_local_modules(spec, transformer)
        elif share_prompts:
            _extend_attention(spec)
        if norm_of_all_heads:
            _put_norms_of_all_heads(spec)
        if transformer.linear_attention_freq is not None:
            put_delta_nets(spec, transformer, stage, RMSNorm)
        with output_layer_without_apex(transformer):
            chunks.append(
                GPTModel(
                    config=transformer,
                    transformer_layer_spec=spec,  # pyright: ignore[reportArgumentType]
                    pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                    post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                    vp_stage=stage,
                    **fields,
                )
            )
    if torch.cuda.is_available():
        chunks = [chunk.cuda() for chunk in chunks]
    for chunk in chunks:
        _mark_parameters(chunk, transformer)
        _register_hooks(chunk)
        if frequencies is not None:
            stock = chunk.rotary_pos_emb
            stock.inv_freq = torch.tensor(frequencies, dtype=torch.float32, device=stock.inv_freq.device)
        if transformer.multi_latent_attention:
            latent_attention.mend(chunk)
        elif not has_transformer_engine():
            chunk.rotary_pos_emb = RowRotaryEmbedding(chunk.rotary_pos_emb, transformer.params_dtype)
        elif share_prompts:
            chunk.rotary_pos_emb = SharedRotaryEmbedding(chunk.rotary_pos_emb)
    return chunks


def _replace_local_modules(spec: Any, transformer: TransformerConfig) -> None:
    """Puts `PackedAttention` and `RMSNorm` into the local layer spec, for packed sequences and sequence parallelism."""
    for layer in spec.layer_specs:
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
        has_experts = MoELayer in (getattr(parts.mlp, "module", None), getattr(parts.mlp, "func", None))  # newer: func
        if has_experts:
            # In checkpoints the norm before experts keeps its own name, as in Transformer Engine's spec. The local spec
            # would rename it as if it were fused into a dense MLP.
            parts.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.", None)
        attention = parts.self_attention.submodules
        attention.core_attention = PackedAttention
        if transformer.multi_latent_attention:
            latent_attention.replace_local_modules(parts, transformer, has_experts=has_experts)
        elif transformer.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
    spec.layer_norm = RMSNorm


def _put_norms_of_all_heads(spec: Any) -> None:
    """Puts the norms of all heads' queries, and keys, in place of those of each head."""
    for layer in spec.layer_specs:
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm, attention.k_layernorm = NormOfQueries, NormOfKeys


def _extend_attention(spec: Any) -> None:
    """Lets the attention of Transformer Engine's layer spec take rows with shared prompts."""
    from megatron_sspo.policy.shared_prompts.transformer_engine import with_shared_prompts

    for layer in spec.layer_specs:
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = with_shared_prompts(attention.core_attention)


def _mark_parameters(chunk: GPTModel, transformer: TransformerConfig) -> None:
    """Marks expert parameters, so that their gradients are summed over the expert data-parallel group, and sinks.

    With tensor parallelism, EP = 1 and ETP ≠ TP, megatron-core before 0.19 marks experts for the dense group, and the
    gradients of tensor-parallel ranks are never summed. The mark is right for every EP and release.
    """
    size = transformer.tensor_model_parallel_size
    marks_experts = size > 1 and transformer.expert_tensor_parallel_size != size
    for name, given in chunk.named_parameters():
        parameter: Any = given
        if marks_experts and ".experts." in name:
            parameter.allreduce = False
            # Tensor-parallel ranks have other experts or other tokens: biases count as weights do, and no gradient is
            # summed over these ranks, nor one rank's norm taken for all.
            parameter.sequence_parallel, parameter.tensor_model_parallel = False, True
        if name.endswith(".softmax_offset"):  # cut over tensor-parallel ranks: else the norm counts one rank's alone
            set_tensor_model_parallel_attributes(parameter, True, 0, 1)


def _register_hooks(chunk: GPTModel) -> None:
    """Lets Megatron add an expert's second bias in place, and releases a microbatch's probabilities after each layer.

    Autograd forbids the former on what the local layer of an expert returns. A token dispatcher keeps the probabilities
    until its next microbatch, and with them the autograd graph behind them: two hidden states of every layer that is
    recomputed would stay in memory after the backward pass (megatron-core 0.16 to 0.19).
    """

    def release(layer: Any, *_: Any) -> None:
        dispatcher = layer.token_dispatcher
        for holder in (dispatcher, getattr(dispatcher, "_comm_manager", None)):  # a "flex" dispatcher has a manager
            for name in ("probs", "local_probs", "token_probs", "dispatched_probs"):
                if hasattr(holder, name):
                    setattr(holder, name, None)

    for module in chunk.modules():
        if isinstance(module, MoELayer):
            module.register_forward_hook(release)
        if isinstance(module, RowParallelLinear) and module.is_expert and module.bias is not None:
            module.register_forward_hook(lambda _, __, found: (found[0].clone(), found[1]))
