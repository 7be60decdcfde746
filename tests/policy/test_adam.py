"""The fused Adam against its formula, and its contract with Megatron's distributed optimizer."""

import pytest
import torch

from megatron_sspo.policy.without_cuda.adam import Adam


@pytest.mark.parametrize("bias_correction", [True, False])
def test_the_formula(bias_correction) -> None:
    torch.manual_seed(0)
    lr, beta1, beta2, eps, decay = 1e-2, 0.9, 0.95, 1e-6, 0.1
    parameter = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    expected, m, v = parameter.detach().clone(), torch.zeros(5, 7).double(), torch.zeros(5, 7).double()
    adam = Adam([parameter], lr, bias_correction=bias_correction, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    for step in range(1, 6):
        gradient = torch.randn(5, 7, dtype=torch.float64)
        parameter.grad = gradient.clone()
        adam.step()
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        unbiased = (m / (1 - beta1**step), v / (1 - beta2**step)) if bias_correction else (m, v)
        expected = (1 - lr * decay) * expected - lr * unbiased[0] / (unbiased[1].sqrt() + eps)
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-13)
        assert adam.param_groups[0]["step"] == step


def test_its_state_is_two_moments_of_parameters_with_a_gradient() -> None:
    learns, rests = (torch.ones(3, requires_grad=True) for _ in range(2))
    learns.grad = torch.ones(3)
    adam = Adam([learns, rests], lr=0.1)
    adam.step()
    assert list(adam.state) == [learns]
    assert list(adam.state[learns]) == ["exp_avg", "exp_avg_sq"]
    assert torch.equal(rests, torch.ones(3))
