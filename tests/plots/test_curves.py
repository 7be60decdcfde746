"""The curves of runs."""

import errno
import json
import os
import re
from pathlib import Path

import pytest
from matplotlib import image

from megatron_sspo.__main__ import main
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


def test_runs_of_one_label_are_both_drawn(tmp_path: Path) -> None:
    gates = {"objective": {"token_gate": {"class": "SigLog"}, "sequence_gate": {"class": "Identity"}}}
    one, other = run(tmp_path / "a"), run(tmp_path / "a (SigLog)", 8, **{"reward/mean": 0.9})
    (one / "config.json").write_text(json.dumps(gates))
    plot_runs([one, other], tmp_path / "both.png")
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
    missing = tmp_path / "missing"
    with pytest.raises(UserError, match=r"is .*missing the folder of a run"):
        plot_runs([missing], missing / "curves.png")  # the run is named, not the place of the picture
    broken = run(tmp_path / "a")
    (broken / "metrics.jsonl").write_text("{\n")
    with pytest.raises(UserError, match="line 1 is not JSON"):
        plot_run(broken)
    assert not list(tmp_path.rglob("*.png"))


def written(folder: Path, name: str, *rows: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{row}\n" for row in rows))
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Returns the error of `plot`, which is one sentence, when it draws nothing."""
    assert main(["plot", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("megatron-sspo: ") and said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("what", ["gates", "RUN"])
def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    what = what.replace("RUN", str(run(tmp_path / "a")))
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for output, reason in {
        "folder.png": "Is a directory",
        "a/metrics.jsonl": "is not a picture in a folder: choose a suffix of .png, .svg, .pdf",
        "nowhere/x.png": "is not a picture in a folder",
        f"{'x' * 300}.png": "File name too long",
    }.items():
        assert reason in refusal(capsys, what, "--output", tmp_path / output), output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "a")
    (folder / "curves.png").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"cannot write into .*/a/curves.png: No space left on device; make room, or"):
        plot_run(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["curves.png", "evaluations.jsonl", "metrics.jsonl"]
    assert (folder / "curves.png").read_text() == "old"


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_rows_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    for place, (row, reason) in enumerate({"{": "line 2 is not JSON", "{}": "line 2 has no update"}.items()):
        folder = written(run(tmp_path / str(place)), name, '{"update": 1, "reward/mean": 0.5}', row)
        assert reason in refusal(capsys, folder)
        assert not (folder / "curves.png").exists()


def test_folders_of_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, reason in {
        written(tmp_path / "empty", "metrics.jsonl"): "has no rows: wait for the first update",
        tmp_path / "nowhere": "is .* the folder of a run",
    }.items():
        assert re.search(reason, refusal(capsys, run(tmp_path / f"whole-{folder.name}"), folder))


def test_evaluations_by_a_reward_of_the_users_own_have_no_pass_rate(tmp_path: Path) -> None:
    folder = run(tmp_path / "a")
    (folder / "evaluations.jsonl").write_text('{"update": 0, "sums/letters": 3.5}\n')
    assert num_pixels(plot_run(folder), "#0072B2") > 1000


@pytest.mark.parametrize("num_updates", [0, 8])
def test_what_a_kill_left_of_the_last_row_is_no_row(tmp_path: Path, num_updates: int) -> None:
    folder = run(tmp_path / "a", num_updates)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 9, "rew')
    assert plot_run(folder).exists()


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


@pytest.mark.parametrize("count", [2, 7])
def test_equal_curves_do_not_hide_each_other(tmp_path: Path, count: int) -> None:
    """Each of several equal runs, up to the number of colours, is visible in the curves, not only in the legend."""
    equal = [run(tmp_path / f"run-{number}", 40) for number in range(count)]
    silent = [
        written(tmp_path / f"not-{number}", "metrics.jsonl", '{"update": 1, "reward/mean": NaN}')
        for number in range(count)
    ]
    plot_runs(equal, tmp_path / "equal.png")
    plot_runs(silent, tmp_path / "legend.png")
    for colour in ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")[:count]:
        assert num_pixels(tmp_path / "equal.png", colour) > num_pixels(tmp_path / "legend.png", colour) + 200, colour


def test_many_runs_of_odd_names(tmp_path: Path) -> None:
    names = ["$x^$", "_hidden", os.fsdecode(b"\xff"), "ünïcode", "漢字", "a b", "100 %", "a\\b", "{x}"]
    folders = [run(tmp_path / name, 3) for name in names] + [run(tmp_path / str(n), 3) for n in range(12)]
    plot_runs(folders, tmp_path / "all.png")
    plot_runs(folders, tmp_path / "all.svg")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "all.svg").read_text(encoding="utf-8")
