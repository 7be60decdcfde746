"""The optimizer on the host gives the numbers and the checkpoints of the one on the device, to the bit."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import offloaded
import pytest
import resume
import torch
from launcher import launch
from tiny_policy import read_batch

from megatron_sspo.policy.with_cuda import offload
from megatron_sspo.policy.without_cuda.adam import Adam, update
from megatron_sspo.run import Model


def repeating(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Returns the mark of layouts whose optimizer is cut as that of another one."""
    return (pytest.mark.long,) if name in ("DP2", "EP2", "TP2 SP ETP2", "CP2") else ()


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=repeating(name)) for name in offloaded.LAYOUTS])
def test_gradients_weights_and_checkpoints_are_equal_to_the_bit(folders, batches, tmp_path, name) -> None:
    launch(Path(offloaded.__file__), 2, folders["moe"].parent, batches["moe"].parent, tmp_path, name)


def step_without_empty_groups(adam: Adam, step: Callable[[Adam], None] = Adam.step) -> None:
    """Takes a step as Transformer Engine does, which does not count the steps of groups without parameters."""
    every = adam.param_groups
    adam.param_groups = [group for group in every if group["params"]]
    step(adam)
    adam.param_groups = every


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_change_after_it_was_made_are_not_lost(folders, batches, device, dtype, monkeypatch) -> None:
    monkeypatch.setattr(Adam, "step", step_without_empty_groups)
    batch, found = read_batch(batches["dense"]), {}
    for share in (0.0, 0.5, 1.0):
        optimizer = replace(resume.OPTIMIZER, offload=share)
        policy = resume.make_policy(folders["dense"], device, model=Model(path="", dtype=dtype), optimizer=optimizer)
        parts = [offloaded.train(policy, batch, 1)]
        earlier = weakref.ref(policy.optimizer.param_groups[0]["params"][0])
        policy.set_optimizer(optimizer, 5)  # as after a warm start
        assert earlier() is None
        parts.append(offloaded.train(policy, batch, 2))
        with torch.no_grad():
            for parameter in policy.chunks[0].parameters():
                parameter.mul_(1.5)
        policy.optimizer.reload_model_params()
        found[share] = [*parts, offloaded.train(policy, batch, 2)]
    for share in (0.5, 1.0):
        for number, (one, other) in enumerate(zip(found[share], found[0.0], strict=True)):
            offloaded.assert_equal(one, other, f"{share}, part {number}")


class LateStream:
    """A stream whose copies run as late as they may: in their order, and when one of them is waited for."""

    def __init__(self) -> None:
        self._copies, self._done = [], 0

    def begin(self) -> None: ...
    def end(self) -> None: ...

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> SimpleNamespace:
        self._copies.append((source, destination))
        return SimpleNamespace(synchronize=partial(self.run_until, len(self._copies)))

    def run_until(self, number: int | None = None) -> None:
        for source, destination in self._copies[self._done : number]:
            destination.copy_(source)
        self._done = max(self._done, number or len(self._copies))


def test_no_buffer_is_used_before_its_copy_has_ended(monkeypatch) -> None:
    """Two steps of two optimizers, each of five pieces, follow one another without a pause."""
    monkeypatch.setattr(offload, "CopyStream", LateStream)
    monkeypatch.setattr(offload, "_PIECE", 16)
    pipeline, group = (
        offload._Pipeline(),
        {"betas": (0.9, 0.95), "bias_correction": True, "lr": 0.1, "weight_decay": 0.1, "eps": 1e-8},
    )
    torch.manual_seed(0)
    states = [[torch.randn(16 * 5), torch.randn(16 * 5), torch.zeros(16 * 5), torch.zeros(16 * 5)] for _ in range(2)]
    expected = [[tensor.clone() for tensor in state] for state in states]
    weights = [torch.zeros(16 * 5, dtype=torch.bfloat16) for _ in range(2)]
    for step in (1, 2):
        for weight, (gradient, master, *moments) in zip(weights, states, strict=True):
            parts = zip(*(tensor.split(16) for tensor in (weight, gradient, master, *moments)), strict=True)
            pieces = [offload._Piece(group, w, g, p, [[m], [v]]) for w, g, p, m, v in parts]
            pipeline.begin(pieces)
            pipeline.run(pieces, step)
    pipeline._up.run_until()  # pyright: ignore
    for weight, state, (gradient, master, *moments) in zip(weights, states, expected, strict=True):
        for step in (1, 2):
            update(group, step, [master], [gradient], *([moment] for moment in moments))
        assert [torch.equal(a, b) for a, b in zip(state[1:], (master, *moments), strict=True)] == [True] * 3
        assert torch.equal(weight, master.bfloat16())
