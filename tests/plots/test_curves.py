"""The curves of runs."""

import json
from pathlib import Path

import pytest
from matplotlib import image

from megatron_sspo.errors import UserError
from megatron_sspo.plots.curves import plot_run, plot_runs


def run(folder: Path, num_updates: int = 8, **changes: float) -> Path:
    folder.mkdir(parents=True)
    quantiles = {"p01": -0.5, "p10": -0.1, "p50": 0.0, "p90": 0.1, "p99": 0.5}
    rows = [
        {
            "update": update,
            "reward/mean": update / 8,
            "policy/entropy": 1.0 / update,
            "policy/kl_old": 0.0 if update % 2 else 10.0**-update,
            "policy/grad_norm": 1.0,
            "response/tokens_mean": 20.0,
            **{f"{n}/{q}": v for n in ("log_ratio", "token_weight", "sequence_weight") for q, v in quantiles.items()},
        }
        | changes
        for update in range(1, num_updates + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "evaluations.jsonl").write_text('{"update": 0, "pass@1": 0.25}\n{"update": 8, "pass@1": 0.75}\n')
    return folder


def num_pixels(path: Path, colour: str) -> int:
    pixels = (image.imread(path)[..., :3] * 255).round().astype(int)
    return int((pixels == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(axis=-1).sum())


def test_one_run_into_its_own_folder(tmp_path: Path) -> None:
    path = plot_run(run(tmp_path / "a"))
    assert path == tmp_path / "a" / "curves.png"
    assert num_pixels(path, "#0072B2") > 1000
    assert num_pixels(path, "#D55E00") == 0
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["curves.png", "evaluations.jsonl", "metrics.jsonl"]


def test_two_runs_have_two_colours_and_may_share_a_name(tmp_path: Path) -> None:
    other = run(tmp_path / "y" / "a", 4, **{"reward/mean": 0.9, "policy/entropy": 2.0})
    plot_runs([run(tmp_path / "x" / "a"), other], tmp_path / "both.png")
    assert num_pixels(tmp_path / "both.png", "#0072B2") > 1000
    assert num_pixels(tmp_path / "both.png", "#D55E00") > 1000


@pytest.mark.parametrize(
    "changes",
    [
        {"policy/kl_old": 0.0},
        {"policy/grad_norm": 0.0},
        {"policy/entropy": float("nan")},
    ],
)
def test_numbers_that_no_logarithm_has(tmp_path: Path, changes: dict[str, float]) -> None:
    assert plot_run(run(tmp_path / "a", **changes)).exists()


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    assert plot_run(run(tmp_path / "a", num_updates=1)).exists()
    empty = run(tmp_path / "b", num_updates=0)
    (empty / "evaluations.jsonl").unlink()
    assert plot_run(empty).exists()


def test_a_folder_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is .* the folder of a run"):
        plot_runs([tmp_path], tmp_path / "x.png")
    broken = run(tmp_path / "a")
    (broken / "metrics.jsonl").write_text("{")
    with pytest.raises(UserError, match="line 1 is not JSON"):
        plot_run(broken)
    assert not list(tmp_path.rglob("*.png"))
