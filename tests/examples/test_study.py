"""The study's own objectives and its sweeps (docs/study.md)."""

from collections import Counter

import pytest
import torch

from examples.study import objectives
from examples.study.grid import SWEEPS
from examples.study.run import command, grid
from megatron_sspo.__main__ import main
from megatron_sspo.objective import AtanLog, Clip, Pessimistic, Segments, SequenceObjective
from tests.objective.test_gates import gradient_of_log_gate
from tests.rows import sets

OBJECTIVES = {name: value for name, value in vars(objectives).items() if isinstance(value, SequenceObjective)}
_TINY_MODEL = sets("model.path=examples/study/tiny_dense", "model.init=random")  # the real one is a download
GATES = [objectives.Mask(0.2, 0.3), objectives.BySign(Pessimistic(AtanLog()), AtanLog())]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gate", GATES, ids=str)
def test_the_weight_is_the_derivative(gate, advantage) -> None:
    log_ratio = torch.tensor([-2.0, -0.3, -0.1, -1e-3, 1e-3, 0.1, 0.3, 2.0], dtype=torch.float64)
    sign = torch.tensor(advantage, dtype=torch.float64)
    torch.testing.assert_close(gate.weight(log_ratio, sign), gradient_of_log_gate(gate, log_ratio, sign))


def test_a_mask_is_a_clip_on_both_sides() -> None:
    log_ratio = torch.tensor([0.5, 1.5]).log()
    for sign, clipped in ((torch.tensor(1.0), [1, 0]), (torch.tensor(-1.0), [0, 1])):
        assert Clip(0.2, 0.2).weight(log_ratio, sign).tolist() == clipped
        assert objectives.Mask(0.2, 0.2).weight(log_ratio, sign).tolist() == [0, 0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_objectives_have_one_gradient_on_policy(name) -> None:
    """The gradient at ρ = 1 is that of REINFORCE with the mean over tokens: −Â_i / |y_i| at each token."""
    segments = Segments.from_lengths([3, 2])
    log_probs = (-torch.rand(5, generator=torch.Generator().manual_seed(0))).requires_grad_()
    advantages = torch.tensor([1.5, -0.5])
    loss = OBJECTIVES[name](log_probs, log_probs.detach(), advantages, segments).loss
    (gradient,) = torch.autograd.grad(loss, log_probs)
    torch.testing.assert_close(gradient, torch.tensor([-0.5, -0.5, -0.5, 0.25, 0.25]))


def test_each_cell_is_in_one_sweep() -> None:
    cells = Counter(
        (sweep.recipe, tuple(sweep.assignments), label, mu, f"{rate:.3g}")
        for sweep in SWEEPS.values()
        if not sweep.screening  # its cells have seeds of the screening, too
        for label in sweep.objectives
        for mu in sweep.updates_per_sync
        for rate in sweep.rates
    )
    assert [cell for cell, count in cells.items() if count > 1 and cell[3] != 1] == []  # the search is of μ = 1, too


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_can_be_started(name, tmp_path) -> None:
    """Every objective of every sweep is read, and every run checked."""
    for seed in range(SWEEPS[name].seeds):
        (tmp_path / f"warm-{seed}").mkdir()
        (tmp_path / f"warm-{seed}" / "config.json").write_text("{}")
    sweep = SWEEPS[name]
    line = command(f"examples/study/recipes.py:{sweep.recipe}", tmp_path / "sweep", 1, 2, *grid(sweep))
    start = ["--start-from", str(tmp_path / "warm-{seed}")] if sweep.warm_start else _TINY_MODEL
    assert main([*line[3:], *start, "--dry-run"]) == 0
    assert not (tmp_path / "sweep").exists()
