"""A platform plug-in for SGLang: the stock server on plain PyTorch, on a machine without a GPU."""


def activate() -> str | None:
    """Returns the name of the platform class, for SGLang at its start; None on a GPU, which SGLang itself supports."""
    import torch

    return None if torch.cuda.is_available() else "sglang_cpu_platform.platform.TorchCpuPlatform"
