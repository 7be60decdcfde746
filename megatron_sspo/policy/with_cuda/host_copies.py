"""Host memory for the optimizer, and copies between it and a GPU while both compute. On a CPU they are plain copies."""

from typing import Any

import torch


def host_empty(length: int, dtype: torch.dtype = torch.float32, *, pinned: bool = False) -> torch.Tensor:
    """Returns a tensor in host memory.

    Args:
        pinned: whether a GPU reads or writes it while others compute. torch rounds the size of pinned memory up to a
            power of two, so only buffers are pinned.
    """
    return torch.empty(length, dtype=dtype, device="cpu", pin_memory=pinned and torch.cuda.is_available())


class CopyStream:
    """A stream of copies in one direction."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def begin(self) -> None:
        """Makes the copies that follow wait for what the GPU has been told to compute."""
        self._stream.wait_stream(torch.cuda.current_stream())

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> Any:
        """Starts a copy, and returns an event to wait for; the tensor on the host has to be pinned."""
        with torch.cuda.stream(self._stream):
            destination.copy_(source, non_blocking=True)
        return self._stream.record_event()

    def end(self) -> None:
        """Makes what the GPU computes next wait for the copies."""
        torch.cuda.current_stream().wait_stream(self._stream)
