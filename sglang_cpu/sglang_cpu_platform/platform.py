"""The platform: PyTorch's own implementation of every operation, no compiled SGLang kernels, no Triton launches."""

from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU platform on plain PyTorch. SGLang's own CPU path needs kernels that no wheel on PyPI contains."""

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
        """Replaces the host allocator by one without GPU registration, for the reports of routed experts.

        Latent attention always attends to the latents: this backend takes keys from the cache alone.
        """
        from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS
        from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
        from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod
        from sglang.srt.runtime_context import get_lora

        ALLOC_MEMORY_FUNCS["cpu"] = _allocate
        AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)
        if get_lora().enable_lora:
            _leave_memory_unpinned()


def _allocate(dims: Any, dtype: torch.dtype, device: str, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty(dims, dtype=dtype, device=device)


def _leave_memory_unpinned() -> None:
    """Makes torch ignore requests for pinned memory: SGLang's adapters make them whatever the platform says."""
    for name in ("tensor", "empty", "zeros"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_: self


def _unpinned(make: Any) -> Any:
    return lambda *values, **options: make(*values, **{**options, "pin_memory": False})
