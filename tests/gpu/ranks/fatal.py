"""The recipe `examples/tiny_moe.py`, in which the process of rank 1 is killed; FATAL says where."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import torch

from examples.tiny_moe import recipe
from megatron_sspo.weights.gather import GatherPlan

__all__ = ["recipe"]
_calls = {"forward": 0, "all_reduce": 0, "sync": 0}


def _count(where: str, fatal: int) -> None:
    """Kills the process of rank 1 at call number `fatal` of the place that FATAL names."""
    if os.environ.get("RANK") == "1" and os.environ["FATAL"] == where:
        _calls[where] += 1
        if _calls[where] == fatal:
            os.kill(os.getpid(), signal.SIGKILL)


_call, _all_reduce, _iterate = torch.nn.Module.__call__, torch.distributed.all_reduce, GatherPlan.__iter__


def _fatal_call(self: Any, *arguments: Any, **options: Any) -> Any:
    if type(self).__name__ == "TransformerLayer":
        _count("forward", 3)
    return _call(self, *arguments, **options)


def _fatal_all_reduce(*arguments: Any, **options: Any) -> Any:
    _count("all_reduce", 3)
    return _all_reduce(*arguments, **options)


def _fatal_iterate(self: GatherPlan) -> Iterator[Any]:
    for pair in _iterate(self):
        _count("sync", 3)
        yield pair


torch.nn.Module.__call__ = _fatal_call
torch.distributed.all_reduce = _fatal_all_reduce
GatherPlan.__iter__ = _fatal_iterate
