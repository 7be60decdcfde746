"""The objective of a batch and its gradient by Transformers, written as the paper does."""

import torch
from transformers.core_model_loading import revert_weight_conversion

from tests.policy.tiny_policy import log_probs


def naive_sspo(model, batch, on_policy=False):
    """−(1/N) Σ_i Â_i (Π_t f(ρ_it; Â_i))^{1/|y_i|} with f(ρ) = exp(τ arctan(log ρ / τ)), the paper's formula.

    An observation has ρ = 1 and f = 1, and does not count in |y_i|.
    """
    total, count = torch.zeros(()), 0
    for group in batch:
        for rollout in group.rollouts:
            count += 1
            if not len(rollout.tokens):
                total = total - rollout.advantage
                continue
            now = log_probs(model, group.prompt, rollout)
            old = now.detach() if on_policy else torch.tensor(rollout.old_log_probs)
            tau = 0.2 if rollout.advantage > 0 else 0.3
            gates = torch.exp(tau * torch.arctan(torch.log(torch.exp(now - old)) / tau))
            total = total - rollout.advantage * torch.prod(gates) ** (1 / rollout.num_response_tokens)
    return total / count


def naive_reinforce(model, batch):
    """−(1/N) Σ_i Â_i (1/|y_i|) Σ_t log π_θ(y_it)."""
    rollouts = [(group.prompt, rollout) for group in batch for rollout in group.rollouts]
    means = [r.advantage * log_probs(model, p, r).sum() / r.num_response_tokens for p, r in rollouts if len(r.tokens)]
    return -sum(means) / len(rollouts)


def reference_gradients(model, loss):
    loss.backward()
    found = {}
    for name, parameter in model.named_parameters():
        found |= revert_weight_conversion(model, {name: parameter.grad})
    return found
