"""Times the attention of packed sequences and of shared prompts on a CPU: all in padded calls, and a call for each.

    OMP_NUM_THREADS=1 python benchmarks/attention.py

A cell is milliseconds of a forward and backward pass over eight sequences whose lengths fall evenly from the longest to
five twelfths of it, in float32 on one thread, as the median of --passes in turn. The error is that of the
gradients of queries, keys and values against float64, relative to their norm; it is the largest of both ways and all
passes. The second table has rows with shared prompts, 8 responses to each of 16 prompts of so many tokens, whose
lengths fall in the same way; padding is the number of multiplications with a query that it adds to a piece.
"""

import argparse
import statistics
import time
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

from megatron_sspo.batching.row import Section, pieces_of
from megatron_sspo.policy.layers import attention
from megatron_sspo.policy.layers.attention import PackedAttention
from megatron_sspo.policy.shared_prompts.packed import SharedSeqParams

HEADS = ((4, 16), (4, 32), (9, 64), (32, 128))
LONGEST = (24, 64, 128, 256)
SHARED = ((6, 24), (32, 32), (40, 88), (64, 192))  # tokens of prompts, and of the longest responses
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def gradients(tensors: Tensors, lengths: list[int], *, padded: bool) -> Tensors:
    """Returns the gradients of the sum of the outputs of all tokens, times fixed numbers."""
    query, key, value = (tensor.detach().requires_grad_() for tensor in tensors)
    weights = torch.arange(value.size(-1), dtype=value.dtype).cos()
    if padded:
        output = attend(query, key, value, is_causal=True)
        loss = sum((output[i, :, :length] * weights).sum() for i, length in enumerate(lengths))
    else:
        parts = ([t[i : i + 1, :, :length] for t in (query, key, value)] for i, length in enumerate(lengths))
        loss = sum((attend(*part, is_causal=True) * weights).sum() for part in parts)
    return torch.autograd.grad(loss, (query, key, value))  # pyright: ignore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| heads, head dimension, longest | padded | one by one | ratio | error |\n|---|---|---|---|---|")
    for heads, dimension in HEADS:
        for longest in LONGEST:
            lengths = [longest - i * longest // 12 for i in range(8)]
            exact = tuple(torch.randn(8, heads, longest, dimension, dtype=torch.float64) for _ in range(3))
            rounded = tuple(tensor.float() for tensor in exact)
            expected = gradients(exact, lengths, padded=True)
            times: dict[bool, list[float]] = {True: [], False: []}
            error = 0.0
            for _ in range(options.passes):
                for padded, column in times.items():
                    begun = time.process_time()
                    found = gradients(rounded, lengths, padded=padded)
                    column.append(1e3 * (time.process_time() - begun))
                    pairs = zip(found, expected, strict=True)
                    error = max(error, *(float((a.double() - b).norm() / b.norm()) for a, b in pairs))
            padded, single = (statistics.median(column) for column in times.values())
            cells = [f"{heads}, {dimension}, {longest}", f"{padded:.2f}", f"{single:.2f}", f"{padded / single:.2f}"]
            print(f"| {' | '.join(cells)} | {error:.1e} |", flush=True)
    columns = "heads, head dimension, prompt, longest response | padding | padded | one by one | ratio"
    print(f"\n| {columns} |\n|---|---|---|---|---|")
    for heads, dimension in HEADS:
        for prompt, longest in SHARED:
            padding, padded, single = shared_prompts(heads, dimension, prompt, longest, options.passes)
            cells = [f"{heads}, {dimension}, {prompt}, {longest}", f"{padding:,.0f}", f"{padded:.2f}", f"{single:.2f}"]
            print(f"| {' | '.join(cells)} | {padded / single:.2f} |", flush=True)


def shared_prompts(heads: int, dimension: int, prompt: int, longest: int, passes: int) -> tuple[float, float, float]:
    """Returns a piece's multiplications with padding, and the milliseconds of padded calls and of a call for each."""
    sections: list[Section] = []
    for _ in range(16):
        first = sections[-1].stop if sections else 0
        sections.append(Section(first, first + prompt, 0, 0))
        for i in range(8):
            start = sections[-1].stop
            sections.append(Section(start, start + longest - i * longest // 12, prompt, first))
    pieces = pieces_of(sections, 0, 1)
    row = SharedSeqParams(pieces=pieces)
    layer = PackedAttention(SimpleNamespace(kv_channels=dimension, attention_dropout=0.0), 1, None, None)
    tensors = [torch.randn(sections[-1].stop, heads, dimension, requires_grad=True) for _ in range(3)]
    times: dict[float, list[float]] = {float("inf"): [], -1.0: []}
    for _ in range(passes):
        for limit, column in times.items():
            attention._MULTIPLICATIONS_PER_CALL = limit
            begun = time.process_time()
            torch.autograd.grad(layer(*tensors, packed_seq_params=row).sum(), tensors)
            column.append(1e3 * (time.process_time() - begun))
    padded, single = (statistics.median(column) for column in times.values())
    return pieces.padding * heads * dimension, padded, single


if __name__ == "__main__":
    main()
