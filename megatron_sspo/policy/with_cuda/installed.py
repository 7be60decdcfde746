"""The kernels on which a trainer process relies with CUDA: Transformer Engine's, and Apex's."""

import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version

import torch
from packaging.version import Version

from megatron_sspo.errors import UserError, first_line

# The oldest that megatron-core 0.16 is released for; later releases of megatron-core name none.
OLDEST_TRANSFORMER_ENGINE = "2.9"


def has_transformer_engine() -> bool:
    """Returns whether the model has Transformer Engine's layers: there is a GPU, and it is installed and works.

    Raises:
        UserError: it is installed, but it is too old or cannot be imported. Without it, the model would have slow
            layers, and nobody would know why.
    """
    if not torch.cuda.is_available() or importlib.util.find_spec("transformer_engine") is None:
        return False
    found = transformer_engine_version()
    try:
        # the package itself is imported even if its part for torch is missing or broken
        importlib.import_module("transformer_engine.pytorch")
        # imported here, because Megatron imports Transformer Engine and lets some of its errors through
        from megatron.core.extensions import transformer_engine as layers

        # Megatron imports names that a newer one may have removed
        reason = "" if layers.HAVE_TE else f"megatron-core {version('megatron-core')} cannot use it"
    except Exception as error:  # of many kinds: a shared library that is missing, or was built for another torch
        reason = f"it cannot be imported ({first_line(error)})"
    if Version(found) < Version(OLDEST_TRANSFORMER_ENGINE):
        reason = f"it is older than {OLDEST_TRANSFORMER_ENGINE}, the oldest that fits"
    if reason:
        raise UserError(
            f"Transformer Engine {found} is installed, and {reason}: install one that was built for this torch and "
            "CUDA (pip install --no-build-isolation "
            f"'transformer-engine[pytorch]>={OLDEST_TRANSFORMER_ENGINE}'), or uninstall it"
        )
    return True


def transformer_engine_version() -> str:
    """Returns the version of the installed Transformer Engine; "0" if it has no metadata."""
    try:
        return version("transformer-engine")
    except PackageNotFoundError:
        return "0"


def has_apex_wgrad() -> bool:
    """Returns whether Apex's kernel is installed that adds a weight's gradient to its float32 sum."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None
