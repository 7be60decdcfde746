"""Times a step of the trainer's Adam on the CPU against a loop over the parameters.

OMP_NUM_THREADS=1 python benchmarks/optimizer_step.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from megatron_sspo.policy.without_cuda.adam import Adam


class Loop(Adam):
    """The same Adam by elementwise operations, a parameter at a time."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        """Updates every parameter."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            (beta1, beta2), lr = group["betas"], group["lr"]
            correction1, correction2 = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self._state_of(parameter)
                parameter.mul_(1 - lr * group["weight_decay"])
                state["exp_avg"].lerp_(gradient, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                denominator = (state["exp_avg_sq"] / correction2).sqrt_().add_(group["eps"])
                parameter.addcdiv_(state["exp_avg"], denominator, value=-lr / correction1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=50, help="millions of parameters (%(default)s)")
    parser.add_argument("--pairs", type=int, default=9, help="pairs of timed steps (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = [stepper(kind, options.millions) for kind in (Loop, Adam)]
    pairs = [[seconds(step) for step in steps] for _ in range(options.pairs + 1)][1:]  # the first one makes the state
    loop, fused = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(slow / fast for slow, fast in pairs)
    print(f"{options.millions} M parameters, one thread: loop {1e3 * loop:.0f} ms, fused {1e3 * fused:.0f} ms")
    print(f"loop / fused: {ratio:.2f} (median of {options.pairs} pairs)")
    print(f"largest difference of the weights after 20 steps: {largest_difference():.1e}")


def stepper(kind: type[Adam], millions: int) -> Callable[[], None]:
    """Returns a step of an optimizer over parameters of a million values each, with gradients."""
    parameters = [torch.randn(1000, 1000, requires_grad=True) for _ in range(millions)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return kind(parameters, lr=1e-3, weight_decay=0.1).step


def largest_difference() -> float:
    """Returns the largest difference of a million weights between the two after 20 steps with random gradients."""
    start = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
    found = []
    for kind in (Loop, Adam):
        parameter, generator = start.clone().requires_grad_(), torch.Generator().manual_seed(1)
        optimizer = kind([parameter], lr=1e-2, weight_decay=0.1)
        for _ in range(20):
            parameter.grad = torch.randn(1000, 1000, generator=generator)
            optimizer.step()
        found.append(parameter.detach())
    return float((found[0] - found[1]).abs().max())


def seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    main()
