"""Dequantizes MXFP4, in which the experts of gpt-oss are published.

Of 32 numbers that follow each other in a row, each is an e2m1 number of 4 bits times 2^(s − 127), for one byte s. A
byte of the blocks has two of the numbers, the first in its low half. bfloat16 holds every product exactly.
"""

import torch
from torch import Tensor

BLOCKS, SCALES = "_blocks", "_scales"  # the ends of the names of a tensor's two parts
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1 = torch.tensor([*_POSITIVE, *(-value for value in _POSITIVE)])


def shape(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape [experts, in, out] of a tensor whose blocks are [experts, out, in / 32, 16]."""
    experts, outputs, count, half = blocks
    return experts, count * 2 * half, outputs


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Returns the tensor [experts, in, out] in bfloat16.

    Args:
        blocks: [experts, out, in / 32, 16] uint8.
        scales: [experts, out, in / 32] uint8.
    """
    numbers = _E2M1[torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).int()]
    values = torch.ldexp(numbers, scales.int()[..., None] - 127).to(torch.bfloat16)
    return values.flatten(-2).transpose(1, 2).contiguous()
