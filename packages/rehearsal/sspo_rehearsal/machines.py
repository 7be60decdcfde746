"""Machines for which a rehearsal predicts the time of an update: their peak rates, from the makers' data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass

TERA, GIGA = 1e12, 1e9

# Shares of the peak rates that a well-tuned program reaches. They are assumptions, not measurements of this package:
# large bfloat16 products of cuBLAS on an H100 run at 600 to 700 of 989 TFLOP/s, those of single experts below that.
FLOPS_UTILIZATION = 0.6
BANDWIDTH_UTILIZATION = 0.8


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The peak rates of a node's GPUs; bytes per second are in one direction.

    Attributes:
        flops: of a dense bfloat16 product.
        memory: bytes of a GPU; memory_rate: bytes per second.
        within: bytes per second from a GPU to the others of its node; between: to other nodes.
        source: where the numbers are from.
    """

    gpus: int
    flops: float
    memory: float
    memory_rate: float
    within: float
    between: float
    source: str


MACHINES: Mapping[str, Machine] = {
    "a100x8": Machine(
        gpus=8,
        flops=312 * TERA,
        memory=80 * GIGA,
        memory_rate=2039 * GIGA,
        within=300 * GIGA,
        between=25 * GIGA,
        source="NVIDIA A100 80GB SXM data sheet; DGX A100: NVLink 600 GB/s in both directions, one 200 Gb/s port a GPU",
    ),
    "h100x8": Machine(
        gpus=8,
        flops=989 * TERA,
        memory=80 * GIGA,
        memory_rate=3350 * GIGA,
        within=450 * GIGA,
        between=50 * GIGA,
        source="NVIDIA H100 SXM data sheet, without sparsity; DGX H100: NVLink 900 GB/s in both directions, one 400 "
        "Gb/s port a GPU",
    ),
    "h200x8": Machine(
        gpus=8,
        flops=989 * TERA,
        memory=141 * GIGA,
        memory_rate=4800 * GIGA,
        within=450 * GIGA,
        between=50 * GIGA,
        source="NVIDIA H200 SXM data sheet, without sparsity; links as in DGX H100",
    ),
    "b200x8": Machine(
        gpus=8,
        flops=2250 * TERA,
        memory=180 * GIGA,
        memory_rate=7700 * GIGA,
        within=900 * GIGA,
        between=50 * GIGA,
        source="NVIDIA DGX B200 data sheet, an eighth of the system's rates, without sparsity; one 400 Gb/s port a GPU",
    ),
}
