"""The platform: every operation in PyTorch's own form, no compiled kernels of SGLang, no Triton launches."""

from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Without a platform of this kind SGLang takes its CPU path through kernels that no wheel on PyPI ships."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()  # no Triton, no graphs

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def post_load_model(self, model: Any) -> None:
        """Has buffers on the host made without registering them with a GPU, which reporting routed experts would do."""
        from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

        ALLOC_MEMORY_FUNCS["cpu"] = _allocate


def _allocate(dims: Any, dtype: torch.dtype, device: str, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty(dims, dtype=dtype, device=device)
