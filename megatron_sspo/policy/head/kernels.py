"""The head's arithmetic on a GPU: a kernel that reads a block of logits once, and one that writes its gradient.

They compute what the tiles of `log_probs` compute, whose docstrings have the formulas. Torch's operators would read and
write every block some ten times. Triton comes with torch for CUDA.
"""

import torch
import triton
import triton.language as tl

_CHUNK = 4096  # columns that a program holds in registers at once
_NUM_WARPS = 8


def add_block(values: torch.Tensor, logits: torch.Tensor, local: torch.Tensor, temperature: float) -> None:
    """Adds a block of columns to the statistics m, s, u and t of its rows, in place.

    Args:
        values: [4, R] float32.
        logits: [R, B], unscaled.
        local: [R] int64, labels as column numbers of the block; labels outside of it belong to other blocks.
    """
    if logits.numel():
        columns, rows = logits.size(1), logits.size(0)
        _add_block[(rows,)](
            values,
            logits,
            local,
            logits.stride(0),
            rows,
            columns,
            float(temperature),
            CHUNK=_CHUNK,
            num_warps=_NUM_WARPS,
        )


def write_gradient(
    out: torch.Tensor,
    logits: torch.Tensor,
    local: torch.Tensor,
    *,
    log_normalizer: torch.Tensor,
    entropy: torch.Tensor,
    g: torch.Tensor,
    h: torch.Tensor | None,
    at_label: torch.Tensor,
    temperature: float,
) -> None:
    """Writes dL/dlogits of a block of columns, for `log_probs.Gradient`; `out` may be `logits`.

    Args:
        log_normalizer, entropy, g, h, at_label: numbers of the rows, [R] float32 each.
    """
    if not logits.numel():
        return
    rows, columns = logits.shape
    _write_gradient[(rows, triton.cdiv(columns, _CHUNK))](
        out,
        logits,
        local,
        log_normalizer,
        entropy,
        g,
        g if h is None else h,
        at_label,
        out.stride(0),
        logits.stride(0),
        columns,
        float(temperature),
        HAS_ENTROPY=h is not None,
        CHUNK=_CHUNK,
        num_warps=_NUM_WARPS,
    )


# The kernels have no annotations but `tl.constexpr`, because Triton would look up their names.
@triton.jit
def _add_block(
    values, logits, local, stride, num_rows, num_columns, temperature,
    CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    maximum, total = tl.load(values + row), tl.load(values + num_rows + row)
    weighted = tl.load(values + 2 * num_rows + row)
    start = logits + row * stride
    for first in range(0, num_columns, CHUNK):
        columns = first + tl.arange(0, CHUNK)
        inside = columns < num_columns
        x = tl.load(start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        new_maximum = tl.maximum(maximum, tl.max(x, axis=0))
        shift = tl.where(maximum == float("-inf"), 0.0, (maximum - new_maximum) / temperature)
        z = tl.where(inside, (x - new_maximum) / temperature, 0.0)
        exponential = tl.where(inside, tl.exp(z), 0.0)
        factor = tl.exp(shift)
        weighted = (weighted + shift * total) * factor + tl.sum(z * exponential, axis=0)
        total = total * factor + tl.sum(exponential, axis=0)
        maximum = new_maximum
    tl.store(values + row, maximum)
    tl.store(values + num_rows + row, total)
    tl.store(values + 2 * num_rows + row, weighted)
    label = tl.load(local + row)
    if (label >= 0) & (label < num_columns):
        tl.store(values + 3 * num_rows + row, tl.load(start + label).to(tl.float32))


@triton.jit
def _write_gradient(
    out, logits, local, log_normalizer, entropy, g, h, at_label,
    out_stride, stride, num_columns, temperature,
    HAS_ENTROPY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = columns < num_columns
    x = tl.load(logits + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    z = (x - tl.load(log_normalizer + row)) / temperature
    p = tl.exp(z)
    factor = -tl.load(g + row)
    if HAS_ENTROPY:
        factor -= tl.load(h + row) * (z + tl.load(entropy + row))
    value = tl.where(columns == tl.load(local + row), tl.load(at_label + row), factor * p)
    tl.store(out + row * out_stride + columns, value.to(out.dtype.element_ty), mask=inside)
