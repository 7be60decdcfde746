"""The head's GPU kernels, run on the CPU by Triton's interpreter, compared with tiles and with log_softmax."""

import pytest
import torch

from megatron_sspo.policy.head.log_probs import Gradient, Statistics

pytestmark = pytest.mark.triton
TEMPERATURE = 0.7


@pytest.fixture
def kernels():
    from megatron_sspo.policy.head import kernels

    return kernels


def example(rows, columns, dtype):
    generator = torch.Generator().manual_seed(rows)
    logits = (3 * torch.randn(rows, columns, generator=generator)).to(dtype)
    labels = torch.randint(0, columns, (rows,), generator=generator)
    return logits, labels, torch.randn(2, rows, generator=generator)


def finished(kernels, logits, labels, width):
    """Returns log-probs, entropies and normalizers by the kernel, from blocks of `width` columns."""
    statistics = Statistics(len(logits), TEMPERATURE, torch.empty(0))
    for first in range(0, logits.size(1), width):
        kernels.add_block(statistics.values, logits[:, first : first + width], labels - first, TEMPERATURE)
    return statistics.finish(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "width"), [(5, 97, 97), (3, 9000, 4500), (4, 300, 100), (2, 4097, 4096)])
def test_values_are_those_of_log_softmax(kernels, rows, columns, width, dtype):
    logits, labels, _ = example(rows, columns, dtype)
    log_probs, entropy, _ = finished(kernels, logits, labels, width)
    distribution = torch.log_softmax(logits.double() / TEMPERATURE, dim=1)
    expected = distribution.gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(entropy.double(), -(distribution.exp() * distribution).sum(1), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "width"), [(5, 97, 97), (3, 9000, 4500)])
def test_gradients_are_those_of_tiles(kernels, rows, columns, width, out_dtype, with_entropy):
    logits, labels, (g, h) = example(rows, columns, torch.float32)
    gradient = Gradient(g, h if with_entropy else None, *finished(kernels, logits, labels, width), TEMPERATURE)
    found, expected = torch.empty(rows, columns, dtype=out_dtype), torch.empty(rows, columns, dtype=out_dtype)
    for first in range(0, columns, width):
        block, local = logits[:, first : first + width], labels - first
        gradient.write(block, local, out=expected[:, first : first + width])
        gradient.write_by_kernel(kernels, block, local, out=found[:, first : first + width])
    torch.testing.assert_close(found, expected, rtol=1e-2 if out_dtype == torch.bfloat16 else 1e-5, atol=1e-6)
