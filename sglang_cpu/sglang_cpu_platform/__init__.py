"""A platform plug-in for SGLang: the stock server on plain PyTorch, on a machine without a GPU."""


def activate() -> str | None:
    """What SGLang calls at start. None where there is a GPU: there SGLang has better of its own."""
    import torch

    return None if torch.cuda.is_available() else "sglang_cpu_platform.platform.TorchCpuPlatform"
