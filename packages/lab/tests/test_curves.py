"""The curves of runs."""

import json
import os
import re
from pathlib import Path

import pytest
from matplotlib import image

from sspo_lab.curves import plot_run, plot_runs
from sspo_lab.trainer import LabError


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


@pytest.mark.parametrize("name", ["a", "a (SigLog)"])
def test_two_runs_have_two_colours_and_may_share_a_name_or_a_label(tmp_path: Path, name: str) -> None:
    gates = {"objective": {"token_gate": {"class": "SigLog"}, "sequence_gate": {"class": "Identity"}}}
    one = run(tmp_path / "x" / "a")
    other = run(tmp_path / "y" / name, 4, **{"reward/mean": 0.9, "policy/entropy": 2.0})
    (one / "config.json").write_text(json.dumps(gates))
    plot_runs([one, other], tmp_path / "both.png")
    assert num_pixels(tmp_path / "both.png", "#0072B2") > 1000
    assert num_pixels(tmp_path / "both.png", "#D55E00") > 1000


@pytest.mark.parametrize("num_updates", [0, 1, 8])
def test_numbers_that_no_logarithm_has_few_rows_and_half_a_row(tmp_path: Path, num_updates) -> None:
    changes = {"policy/kl_old": 0.0, "policy/grad_norm": 0.0, "policy/entropy": float("nan")}
    folder = run(tmp_path / "a", num_updates, **changes)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 9, "rew')
    if num_updates == 1:
        (folder / "evaluations.jsonl").unlink()
    assert plot_run(folder).exists()


def written(folder: Path, name: str, *rows: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{row}\n" for row in rows))
    return folder


def refusal(folder: Path, output: Path | None = None) -> str:
    with pytest.raises(LabError) as refused:
        plot_runs([folder], output or folder / "curves.png")
    return str(refused.value)


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    folder = run(tmp_path / "a")
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for output, reason in {
        "folder.png": "Is a directory",
        "a/metrics.jsonl": "is not a picture in a folder: choose a suffix of .png, .svg, .pdf",
        "nowhere/x.png": "is not a picture in a folder",
        f"{'x' * 300}.png": "File name too long",
    }.items():
        assert reason in refusal(folder, tmp_path / output), output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
@pytest.mark.parametrize("row", ["{", "{}"])
def test_rows_that_are_none(tmp_path: Path, name: str, row: str) -> None:
    folder = written(run(tmp_path / "a"), name, '{"update": 1, "reward/mean": 0.5}', row)
    assert "has a line that is not a row of metrics" in refusal(folder)
    assert not (folder / "curves.png").exists()


def test_folders_of_no_rows(tmp_path: Path) -> None:
    assert "has no rows: wait for the first update" in refusal(written(tmp_path / "empty", "metrics.jsonl"))
    assert re.search("is .* the folder of a run", refusal(tmp_path / "nowhere", tmp_path / "x.png"))


def test_evaluations_by_a_reward_of_the_users_own_have_no_pass_rate(tmp_path: Path) -> None:
    folder = run(tmp_path / "a")
    (folder / "evaluations.jsonl").write_text('{"update": 0, "sums/letters": 3.5}\n')
    assert num_pixels(plot_run(folder), "#0072B2") > 1000


def test_values_that_are_no_number_or_missing_leave_gaps(tmp_path: Path) -> None:
    rows = ['{"update": 1, "reward/mean": NaN, "policy/entropy": "high", "policy/grad_norm": Infinity}']
    rows += ['{"update": 2, "policy/entropy": 1e308, "response/tokens_mean": 1' + "0" * 400 + "}"]
    rows += [f'{{"update": {update}, "reward/mean": {update % 3}}}' for update in range(3, 12)]
    folder = written(tmp_path / "a", "metrics.jsonl", *rows)
    plot_runs([folder], folder / "curves.png")
    assert num_pixels(folder / "curves.png", "#0072B2") > 300


def test_one_row_is_visible(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "metrics.jsonl", '{"update": 1, "reward/mean": 0.5}')
    plot_runs([folder], folder / "curves.png")
    legend_alone = written(tmp_path / "b", "metrics.jsonl", '{"update": 1, "reward/mean": NaN}')
    plot_runs([legend_alone], legend_alone / "curves.png")
    assert num_pixels(folder / "curves.png", "#0072B2") > num_pixels(legend_alone / "curves.png", "#0072B2") + 10


def test_equal_curves_do_not_hide_each_other(tmp_path: Path) -> None:
    """Each of several equal runs, up to the number of colours, is visible in the curves, not only in the legend."""
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
    silent = '{"update": 1, "reward/mean": NaN}'
    plot_runs([run(tmp_path / f"run-{colour}", 40) for colour in colours], tmp_path / "equal.png")
    plot_runs([written(tmp_path / f"not-{each}", "metrics.jsonl", silent) for each in colours], tmp_path / "legend.png")
    for colour in colours:
        assert num_pixels(tmp_path / "equal.png", colour) > num_pixels(tmp_path / "legend.png", colour) + 200, colour


def test_many_runs_of_odd_names(tmp_path: Path) -> None:
    names = ["$x^$", "_hidden", os.fsdecode(b"\xff"), "ünïcode", "漢字", "a b", "100 %", "a\\b", "{x}"]
    folders = [run(tmp_path / name, 3) for name in names] + [run(tmp_path / str(n), 3) for n in range(2)]
    plot_runs(folders, tmp_path / "all.png")
    plot_runs(folders, tmp_path / "all.svg")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "all.svg").read_text(encoding="utf-8")
