"""Times the attention of packed sequences on a CPU: all in one padded call, and a call for each.

    OMP_NUM_THREADS=1 python benchmarks/attention.py

A cell is milliseconds of a forward and backward pass over eight sequences whose lengths fall evenly from the longest to
five twelfths of it, in float32 on one thread, as the median of --passes in turn. The error is the larger one of both,
of the gradients of queries, keys and values against float64, relative to their norm.
"""

import argparse
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

HEADS = ((4, 16), (9, 64), (32, 128))
LONGEST = (24, 64, 128, 256)
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


if __name__ == "__main__":
    main()
