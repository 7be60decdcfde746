"""Defines a name that megatron-core's routers need, with or without a GPU."""


def define_without_te() -> None:
    """Sets `te_general_gemm` to None; megatron-core 0.16 tests the name but defines it only with Transformer Engine."""
    import megatron.core.transformer.moe.moe_utils as moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # pyright: ignore
