"""The kernels on which a trainer process relies with CUDA: Transformer Engine's, and Apex's."""

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from megatron_sspo.errors import UserError, first_line

if TYPE_CHECKING:
    from megatron_sspo.run import Parallel

# The oldest that megatron-core 0.16 is released for; later releases of megatron-core name none.
OLDEST_TRANSFORMER_ENGINE = "2.9"
# The oldest whose names megatron-core imports for norms of gradients: 0.17 to 0.19 fall back to loops, with a warning.
OLDEST_WITH_NORMS = "2.14"
# fields of TransformerConfig that need Transformer Engine, which its own checks do not say
_FIELDS_WITH_KERNELS = (
    *("cpu_offloading", "fused_single_qkv_rope", "gradient_accumulation_fusion", "moe_grouped_gemm"),
    *("moe_router_fusion", "use_te_activation_func"),
)
# `attention_backend` -> the variable by which Transformer Engine has this kind of kernel; by default all are on
_ATTENTION = {"flash": "NVTE_FLASH_ATTN", "fused": "NVTE_FUSED_ATTN", "unfused": "NVTE_UNFUSED_ATTN"}
# `cp_comm_type` -> the oldest that has this form for packed sequences
_OLDEST_FOR_CONTEXT = {"p2p": OLDEST_TRANSFORMER_ENGINE, "a2a": "2.10", "all_gather": "2.18"}
_OLDEST_FOR_FLOAT32 = "2.11"  # before, its only attention for float32 refuses packed sequences


def has_transformer_engine() -> bool:
    """Returns whether the model has Transformer Engine's layers: there is a GPU, and it is installed and works.

    Raises:
        UserError: it is installed, but it is too old or cannot be imported. Without it, the model would have slow
            layers, and nobody would know why.
    """
    if not torch.cuda.is_available() or importlib.util.find_spec("transformer_engine") is None:
        return False
    remedy = (
        "install one that was built for this torch and CUDA (pip install --no-build-isolation "
        f"'transformer-engine[pytorch]>={OLDEST_TRANSFORMER_ENGINE}'), or uninstall it"
    )
    try:
        # the package itself is imported even if its part for torch is missing or broken
        importlib.import_module("transformer_engine.pytorch")
    except Exception as error:  # of many kinds: a shared library that is missing, or was built for another torch
        raise UserError(
            f"Transformer Engine is installed, and cannot be imported ({first_line(error)}): {remedy}"
        ) from error
    found = transformer_engine_version()
    if Version(found) < Version(OLDEST_TRANSFORMER_ENGINE):
        raise UserError(
            f"Transformer Engine {found} is installed, older than {OLDEST_TRANSFORMER_ENGINE}, the oldest that fits: "
            f"{remedy}"
        )
    # imported here, because Megatron imports Transformer Engine and lets some of its errors through
    from megatron.core.extensions import transformer_engine as layers

    if not layers.HAVE_TE:  # it imports names that a newer one may have removed
        raise UserError(
            f"Transformer Engine {found} is installed, and megatron-core {version('megatron-core')} cannot use it: "
            f"{remedy}"
        )
    return True


def check_float32(parallel: "Parallel") -> None:
    """Checks that Transformer Engine, if it is used, has an attention for float32. Its fast ones are for 16 bits only.

    Raises:
        UserError: it has none; in the first forward pass, it would say that no backend is available.
    """
    if not has_transformer_engine():
        return
    if parallel.context > 1:
        raise UserError(
            "model.dtype is float32 with parallel.context > 1: Transformer Engine's attention has no such form, so "
            "choose bfloat16, or parallel.context=1"
        )
    found = transformer_engine_version()
    if Version(found) < Version(_OLDEST_FOR_FLOAT32):
        raise UserError(
            f"model.dtype is float32, and Transformer Engine {found} has no attention for it over packed sequences: "
            f"install {_OLDEST_FOR_FLOAT32} or newer, choose bfloat16, or uninstall it"
        )


def check_context(kinds: str | Sequence[str] | None, groups: int, parallel: "Parallel") -> None:
    """Checks that Transformer Engine, if it is used, has the forms of context parallelism; a pass would fail.

    Args:
        kinds: `TransformerConfig.cp_comm_type`, of all layers or of each.
        groups: the number of key-value heads.

    Raises:
        UserError: it lacks one, or the heads cannot be exchanged among the ranks.
    """
    if parallel.context == 1 or not has_transformer_engine():
        return
    found = transformer_engine_version()
    for kind in [kinds] if isinstance(kinds, str) else kinds or ():
        oldest = _OLDEST_FOR_CONTEXT[kind]
        if Version(found) < Version(oldest):
            raise UserError(
                f"megatron.cp_comm_type has {kind!r}, and Transformer Engine {found} has no such form for packed "
                f"sequences: install {oldest} or newer, or leave it out"
            )
        if kind == "a2a" and (heads := max(1, groups // parallel.tensor)) % parallel.context:
            raise UserError(
                f"megatron.cp_comm_type has 'a2a', which divides the {heads} key-value heads of a rank among "
                f"parallel.context={parallel.context} ranks: leave it out"
            )


def check_attention(backend: str) -> None:
    """Checks that the environment agrees with the choice of kernels for attention.

    Megatron sets Transformer Engine's variables when it builds the model, and fails if one has another value.

    Args:
        backend: the name of `TransformerConfig.attention_backend`.

    Raises:
        UserError: a variable has another value, or the choice leaves Transformer Engine no kernel.
    """
    if backend == "local" and has_transformer_engine():
        raise UserError(
            "megatron.attention_backend is 'local', which leaves Transformer Engine no kernel: leave it out"
        )
    for name, variable in _ATTENTION.items():
        wanted = "1" if backend in ("auto", name) else "0"
        if (found := os.environ.get(variable, wanted)) != wanted:
            raise UserError(
                f"{variable} is {found!r} in the environment, and with megatron.attention_backend={backend!r} Megatron "
                f"sets this variable of Transformer Engine to {wanted}: unset it, and choose by "
                "megatron.attention_backend"
            )


def transformer_engine_version() -> str:
    """Returns the version of the installed Transformer Engine; "0" if it has no metadata."""
    try:
        return version("transformer-engine")
    except PackageNotFoundError:
        return "0"


def has_fused_norms() -> bool:
    """Returns whether megatron-core computes the norm of all gradients by one kernel, and scales them by one."""
    from megatron.core.optimizer import clip_grads

    return getattr(clip_grads.l2_norm_impl, "__module__", "") != "megatron.core.utils"


def has_apex_wgrad() -> bool:
    """Returns whether Apex's kernel is installed that adds a weight's gradient to its float32 sum."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None


def check_installed(options: Mapping[str, Any]) -> None:
    """Checks that the kernels are installed which some fields of Megatron's TransformerConfig need.

    Megatron itself checks only when it builds a layer, or in the first forward pass.

    Args:
        options: the user's own fields.

    Raises:
        UserError: a field is on, and its kernels are not installed.
    """
    if has_transformer_engine():
        return
    for name in _FIELDS_WITH_KERNELS:
        if options.get(name) and not (name == "gradient_accumulation_fusion" and has_apex_wgrad()):
            raise UserError(
                f"megatron.{name} is {options[name]!r}: it needs CUDA and Transformer Engine, which this machine "
                "does not have, so leave it out"
            )
