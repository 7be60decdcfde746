"""Names on which this package relies, with CUDA, in the sources of megatron-core and of Transformer Engine.

Package -> file -> name -> the arguments that are passed by name. A name is that of a function, class or variable of the
file, or `Class.member` for a field or method of the class itself.
"""

Names = dict[str, tuple[str, ...]]


def members(owner: str, *names: str) -> Names:
    """Returns names of a class's fields, or of methods that are called without named arguments."""
    return {f"{owner}.{name}": () for name in names}


MEGATRON: dict[str, Names] = {
    "megatron/core/transformer/transformer_config.py": members(
        "TransformerConfig",
        *("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion"),
        *("apply_rope_fusion", "bias_activation_fusion", "use_te_activation_func"),
        *("masked_softmax_fusion", "persist_layer_norm", "bias_dropout_fusion"),
        *("moe_router_dtype", "moe_expert_capacity_factor", "moe_enable_routing_replay"),
        *("moe_token_dispatcher_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"),
        *("activation_func", "gated_linear_unit", "recompute_granularity", "num_moe_experts", "moe_router_topk"),
    ),
    "megatron/core/model_parallel_config.py": members(
        "ModelParallelConfig",
        "gradient_accumulation_fusion",
        *("variable_seq_lengths", "batch_p2p_comm", "overlap_p2p_comm", "sequence_parallel"),
        *("finalize_model_grads_func", "no_sync_func", "grad_scale_func"),
        *("bf16", "params_dtype", "pipeline_dtype"),
    ),
    "megatron/core/distributed/distributed_data_parallel_config.py": members(
        "DistributedDataParallelConfig",
        *("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer", "grad_reduce_in_fp32"),
    ),
    "megatron/core/distributed/distributed_data_parallel.py": {
        "DistributedDataParallel.__init__": ("config", "ddp_config", "module", "disable_bucketing"),
        "DistributedDataParallel.start_param_sync": ("force_sync",),
        "DistributedDataParallel.zero_grad_buffer": (),
        "DistributedDataParallel.offload_grad_buffers": ("synchronize", "empty_cache"),
        "DistributedDataParallel.restore_grad_buffers": ("synchronize",),
        "DistributedDataParallel.no_sync": (),
    },
    "megatron/core/tensor_parallel/layers.py": {"_grad_accum_fusion_available": (), "ColumnParallelLinear": ()},
    "megatron/core/tensor_parallel/random.py": {"model_parallel_cuda_manual_seed": ("seed", "force_reset_rng")},
    "megatron/core/models/gpt/gpt_layer_specs.py": {
        "get_gpt_decoder_block_spec": ("config", "use_transformer_engine", "normalization", "vp_stage")
    },
    "megatron/core/models/gpt/gpt_model.py": {
        "GPTModel.__init__": ("config", "transformer_layer_spec", "pre_process", "post_process", "vp_stage")
    },
    "megatron/core/packed_seq_params.py": members(
        "PackedSeqParams", "qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv"
    ),
    "megatron/core/transformer/moe/moe_utils.py": {
        "topk_routing_with_score_function": ("fused", "router_replay"),
        **dict.fromkeys(("fused_permute", "fused_permute_with_probs", "fused_unpermute"), ()),
        **dict.fromkeys(("fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs"), ()),
        "fused_topk_with_score_function": (),
    },
    "megatron/core/transformer/moe/router.py": {"get_tokens_per_expert_and_token_count": ()},
    "megatron/core/transformer/moe/router_replay.py": {
        **members("RouterReplay", "clear_global_router_replay_instances", "get_recorded_indices", "clear_indices"),
        **members("RouterReplay", "set_target_indices", "set_router_replay_action", "clear_router_replay_action"),
        **members("RouterReplayAction", "RECORD", "REPLAY_FORWARD", "REPLAY_BACKWARD"),
    },
    "megatron/core/models/common/embeddings/rope_utils.py": {
        "fused_apply_rotary_pos_emb_thd": (),
        "apply_rotary_pos_emb": ("cu_seqlens",),
    },
    "megatron/core/extensions/transformer_engine.py": {
        **dict.fromkeys(("HAVE_TE", "TENorm", "TEDotProductAttention", "TELinear"), ()),
        **dict.fromkeys(("TELayerNormColumnParallelLinear", "TERowParallelLinear"), ()),
        **dict.fromkeys(("TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear"), ()),
    },
    "megatron/core/parallel_state.py": {
        "initialize_model_parallel": (
            *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            *("virtual_pipeline_model_parallel_size", "context_parallel_size"),
            *("expert_model_parallel_size", "expert_tensor_parallel_size", "distributed_timeout_minutes"),
        )
    },
    "megatron/core/optimizer/distrib_optimizer.py": members(
        "DistributedOptimizer",
        *("sharded_param_state_fully_reshardable", "load_parameter_state_from_fully_reshardable"),
        "_get_main_param_and_optimizer_states",
    ),
    "megatron/core/dist_checkpointing/strategies/filesystem_async.py": {
        "FileSystemWriterAsync.write_preloaded_data": (
            *("local_proc_idx", "write_bucket", "results_queue", "count_queue", "use_fsync"),
        ),
        **dict.fromkeys(("_results_queue", "FileSystemWriterAsync.get_save_function_and_args"), ()),
    },
    "megatron/core/dist_checkpointing/serialization.py": {
        "save": ("async_sharded_save",),
        "load": ("strict",),
    },
}

# Names that megatron-core takes from Transformer Engine for the layers and fused kernels that are on by default.
TRANSFORMER_ENGINE: dict[str, Names] = {
    "transformer_engine/pytorch/router.py": {
        "fused_topk_with_score_function": (
            *("logits", "topk", "use_pre_softmax", "num_groups", "group_topk"),
            *("scaling_factor", "score_function", "expert_bias"),
        )
    },
    "transformer_engine/pytorch/permutation.py": {
        "moe_permute": (),
        "moe_permute_with_probs": ("num_out_tokens",),
        "moe_unpermute": ("restore_shape", "merging_probs", "map_type"),
        "moe_sort_chunks_by_index": (),
        "moe_sort_chunks_by_index_with_probs": (),
    },
    "transformer_engine/pytorch/attention/rope.py": {
        "apply_rotary_pos_emb": ("tensor_format", "fused", "cu_seqlens", "cp_size", "cp_rank"),
    },
    "transformer_engine/pytorch/fp8.py": {
        "FP8GlobalStateManager": (),
        "fp8_autocast": (),
    },  # without them: HAVE_TE=False
    "transformer_engine/pytorch/optimizers/__init__.py": {"FusedAdam": ()},
    "transformer_engine/pytorch/module/base.py": {"get_dummy_wgrad": ("shape", "dtype", "zero")},
    "transformer_engine/pytorch/module/grouped_linear.py": {
        "GroupedLinear.__init__": ("num_gemms", "fuse_wgrad_accumulation"),
        "GroupedLinear.forward": ("m_splits",),
    },
    "transformer_engine/pytorch/module/layernorm_linear.py": {
        "LayerNormLinear.__init__": ("fuse_wgrad_accumulation", "normalization"),
    },
    "transformer_engine/pytorch/module/linear.py": {"Linear.__init__": ("fuse_wgrad_accumulation",)},
    "transformer_engine/pytorch/attention/dot_product_attention/dot_product_attention.py": {
        "DotProductAttention.forward": (
            *("qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv"),
        )
    },
}

NEEDED = {"megatron-core": MEGATRON, "transformer-engine": TRANSFORMER_ENGINE}
