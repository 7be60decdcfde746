"""Machines for which a rehearsal predicts the time of an update: their peak rates, from the makers' data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

TERA, GIGA = 1e12, 1e9

# Shares of the peak rates that a well-tuned program reaches. They are assumptions, not measurements of this package:
# large bfloat16 products of cuBLAS on an H100 run at 600 to 700 of 989 TFLOP/s, those of single experts below that.
FLOPS_UTILIZATION = 0.6
BANDWIDTH_UTILIZATION = 0.8


@dataclass(frozen=True, kw_only=True)
class Host:
    """A node's processors and their memory.

    Attributes:
        memory: bytes of a node; rate: bytes per second, which the processes of all its GPUs share.
        pcie: bytes per second between a GPU and the host in one direction, while all GPUs of the node do the same.
        source: where the numbers are from.
    """

    memory: float
    rate: float
    pcie: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The peak rates of a node's GPUs; bytes per second are in one direction.

    Attributes:
        flops: of a dense bfloat16 product.
        memory: bytes of a GPU; memory_rate: bytes per second.
        within: bytes per second from a GPU to the others of its node; between: to other nodes.
        host: the node that they are in.
        source: where the numbers are from.
    """

    gpus: int
    flops: float
    memory: float
    memory_rate: float
    within: float
    between: float
    host: Host
    source: str


# two processors of eight channels each, with two modules a channel, which Intel's run at 4,400 MT/s
_AMD = Host(
    memory=2 * TERA,
    rate=2 * 8 * 3200e6 * 8,
    pcie=31.5 / 2 * GIGA,
    source="DGX A100 of 2 TB: two EPYC 7742 with DDR4-3200, PCIe 4.0 x16 by a switch for two GPUs",
)
_INTEL = Host(
    memory=2 * TERA,
    rate=2 * 8 * 4400e6 * 8,
    pcie=504 / 8 * GIGA,
    source="DGX H100, H200 and B200 user guides: 2 TB in 32 modules; PCIe 5.0 x16 for each GPU",
)

_H100 = Machine(
    gpus=8,
    flops=989 * TERA,
    memory=80 * GIGA,
    memory_rate=3350 * GIGA,
    within=450 * GIGA,
    between=50 * GIGA,
    host=_INTEL,
    source="NVIDIA H100 SXM data sheet, without sparsity; DGX H100: NVLink 900 GB/s in both directions, one 400 Gb/s "
    "port a GPU",
)
MACHINES: Mapping[str, Machine] = {
    "a100x8": Machine(
        gpus=8,
        flops=312 * TERA,
        memory=80 * GIGA,
        memory_rate=2039 * GIGA,
        within=300 * GIGA,
        between=25 * GIGA,
        host=_AMD,
        source="NVIDIA A100 80GB SXM data sheet; DGX A100: NVLink 600 GB/s in both directions, one 200 Gb/s port a GPU",
    ),
    "h100x8": _H100,
    "h200x8": replace(
        _H100,
        memory=141 * GIGA,
        memory_rate=4800 * GIGA,
        source="NVIDIA H200 SXM data sheet, without sparsity; links as in DGX H100",
    ),
    "b200x8": replace(
        _H100,
        flops=2250 * TERA,
        memory=180 * GIGA,
        memory_rate=7700 * GIGA,
        within=900 * GIGA,
        source="NVIDIA DGX B200 data sheet, an eighth of the system's rates, without sparsity; one 400 Gb/s port a GPU",
    ),
}
