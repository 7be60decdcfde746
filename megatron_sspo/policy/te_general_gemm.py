"""A name that megatron-core's routers ask for, with a GPU or without."""


def define_where_transformer_engine_is_missing() -> None:
    """megatron-core 0.16 tests `te_general_gemm is not None` but defines the name only with Transformer Engine."""
    import megatron.core.transformer.moe.moe_utils as moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # pyright: ignore
