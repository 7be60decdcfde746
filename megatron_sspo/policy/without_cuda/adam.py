"""Adam with the contract of Apex's FusedAdam, for Megatron's distributed optimizer without Apex or Transformer Engine.

Megatron trains with torch's Adam, but cannot checkpoint it: `DistributedOptimizer` expects the step count in the
parameter group and nothing but two moments in the state, as Apex keeps them (megatron-core 0.16 to 0.19).
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.adamw import adamw


def update(
    group: Mapping[str, Any],
    step: int,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
) -> None:
    """Takes a step with the settings of a parameter group, which changes parameters and moments; steps begin with 1."""
    beta1, beta2 = group["betas"]
    before = step - 1 if group["bias_correction"] else math.inf  # adamw() adds 1; without bias correction 1 - β^∞ = 1
    adamw(
        parameters,
        gradients,
        first,
        second,
        [],
        [torch.full((), float(before), device=parameter.device) for parameter in parameters],
        fused=True,
        amsgrad=False,
        maximize=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
    )


class Adam(torch.optim.Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101).

        m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← (1 − η·λ)θ − η · m̂ / (√v̂ + ε)

    The step count is per parameter group; the state of a parameter is `exp_avg` and `exp_avg_sq`. The step is torch's
    fused kernel, for CPU or CUDA.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        **_: Any,  # Apex's flags about its CUDA kernel
    ) -> None:
        if not adam_w_mode:
            raise ValueError("this Adam decouples weight decay; set decoupled_weight_decay=True")
        super().__init__(
            params,
            {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay},
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Updates every parameter that has a gradient."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            parameters = [one for one in group["params"] if one.grad is not None]
            states = [self._state_of(parameter) for parameter in parameters]
            moments = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
            gradients = [parameter.grad.to(parameter.dtype) for parameter in parameters]
            update(group, group["step"], parameters, gradients, *moments)

    def _state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


@functools.cache
def install_without_apex_or_te() -> None:
    """Makes Megatron use this Adam as Apex's, if neither Apex nor Transformer Engine is installed."""
    import megatron.core.optimizer as optimizer
    import megatron.core.optimizer.distrib_optimizer as distributed
    import megatron.core.transformer.moe.moe_utils as moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # which routers of 0.16 test, and Transformer Engine alone defines
        moe_utils.te_general_gemm = None  # pyright: ignore

    if not getattr(optimizer, "USING_PYTORCH_OPTIMIZER", False):
        return
    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = Adam, False  # pyright: ignore
    distributed.Adam, distributed.HAVE_APEX_OR_TE, distributed.USING_APEX_OPTIMIZER = Adam, True, True  # pyright: ignore
    # loading a checkpoint copies into main parameters in place, and these require a gradient
    real = distributed.DistributedOptimizer._set_main_param_and_optimizer_states
    distributed.DistributedOptimizer._set_main_param_and_optimizer_states = torch.no_grad()(real)  # pyright: ignore
