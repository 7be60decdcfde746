"""Tables and pictures of sweeps whose runs have given numbers."""

import pytest

from megatron_sspo.__main__ import main
from packages.lab.tests.folders import make_run, make_sweep
from sspo_lab.results import area, read_results
from sspo_lab.table import sweep_table
from sspo_lab.trainer import LabError

VARY = ("objective={ours: sspo(), other: gspo()}", "updates_per_sync=[2, 8]")


@pytest.fixture
def sweep(tmp_path):
    """A sweep in which ours is better with 2 in two of three seeds, and worse with 8 in all seeds."""
    made = make_sweep(tmp_path, *VARY, seeds=3)
    ends = {
        ("ours", "2"): [0.9, 0.7, 0.5],
        ("other", "2"): [0.6, 0.6, 0.6],
        ("ours", "8"): [0.1, 0.2, 0.3],
        ("other", "8"): [0.4, 0.5, 0.6],
    }
    for cell in made.cells():
        end = ends[cell.labels["objective"], cell.labels["updates_per_sync"]][cell.seed]
        make_run(tmp_path / cell.name, [0.0, end, end], **{"sums/avg@4": end / 2, "short/avg@4": end})
    return tmp_path


def test_the_area_is_the_mean_height_of_a_curve() -> None:
    assert area([(0, 0.0), (10, 1.0)]) == 0.5
    assert area([(0, 0.0), (1, 1.0), (4, 1.0)]) == (0.5 + 3) / 4
    assert area([(5, 0.3)]) == 0.3


def test_results_by_setting(sweep) -> None:
    found = read_results(sweep)
    assert (found.measure, found.field, found.values) == ("pass@1 of sums", "objective", ["ours", "other"])
    assert found.settings == ["updates_per_sync=2", "updates_per_sync=8"] and found.unfinished == []
    assert found.finals("ours") == {"updates_per_sync=2": [0.9, 0.7, 0.5], "updates_per_sync=8": [0.1, 0.2, 0.3]}
    assert found.areas("other")["updates_per_sync=2"] == pytest.approx([0.45] * 3)
    turned = read_results(sweep, compare="updates_per_sync")
    assert turned.values == ["2", "8"] and turned.settings == ["objective=ours", "objective=other"]


def test_the_table_by_hand(sweep) -> None:
    lines = sweep_table(read_results(sweep)).splitlines()
    at_the_end = lines.index("**pass@1 of sums, at the end**")
    assert lines[at_the_end + 2] == "| objective | updates_per_sync=2 | updates_per_sync=8 | all settings |"
    ours = lines[at_the_end + 4].split(" | ")
    assert ours[0] == "| ours" and ours[1].startswith("0.700 (0.500–0.900), 3")  # of three values none is cut
    # 0.1 0.2 0.3 0.5 0.7 0.9: one is cut at each end
    assert ours[3].startswith("0.425 (") and ours[3].endswith(", 6 |")
    wins = lines.index("**P(row > column), a tie counting half: pass@1 of sums, at the end, updates_per_sync=2**")
    assert lines[wins + 4].startswith("| ours | – | 0.667 (")
    wins = lines.index("**P(row > column), a tie counting half: pass@1 of sums, at the end, updates_per_sync=8**")
    assert lines[wins + 4].startswith("| ours | – | 0.000 (")
    wins = lines.index("**P(row > column), a tie counting half: pass@1 of sums, at the end, all settings**")
    assert lines[wins + 4].startswith("| ours | – | 0.333 (")
    assert "**pass@1 of sums, mean over the run (area under its curve)**" in lines


def test_another_measure(sweep) -> None:
    assert read_results(sweep, measure="avg@4").measure == "avg@4 of sums, short"
    assert read_results(sweep, measure="avg@4").finals("ours")["updates_per_sync=2"] == pytest.approx(
        [0.675, 0.525, 0.375]
    )
    assert read_results(sweep, measure="short/avg@4").finals("ours")["updates_per_sync=2"] == [0.9, 0.7, 0.5]
    assert read_results(sweep, measure="reward/mean").finals("ours")["updates_per_sync=2"] == [0.2] * 3
    with pytest.raises(LabError, match=r"has no number 'pass@2': choose from sums/pass@1, .*, reward/mean"):
        read_results(sweep, measure="pass@2")
    with pytest.raises(LabError, match="--compare seed is not varied"):
        read_results(sweep, compare="seed")


def test_what_is_not_finished_is_left_out_and_named(tmp_path, capsys) -> None:
    made = make_sweep(tmp_path, *VARY, seeds=2)
    with pytest.raises(LabError, match=r"no run of the sweep .* is finished yet"):
        read_results(tmp_path)
    for cell in made.cells():
        if cell.labels != {"objective": "other", "updates_per_sync": "8"}:
            make_run(tmp_path / cell.name, [0.0, 0.5], num_updates=1 if cell.seed == 0 else 2)
    assert main(["table", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Not finished, and left out: objective=other,updates_per_sync=8,seed=0; " in out
    assert "| other | 0.500, 1 | – | 0.500, 1 |" in out  # "other" has no finished run with 8
    assert "| ours | 0.500, 1 | 0.500, 1 | 0.500, 1 |" in out  # so "all settings" has only the settings that both have
    assert main(["plot", str(tmp_path)]) == 0


def test_seeds_alone(tmp_path, capsys) -> None:
    made = make_sweep(tmp_path, seeds=4)
    for cell, end in zip(made.cells(), [0.0, 0.2, 0.4, 1.0], strict=True):
        make_run(tmp_path / cell.name, [0.0, end])
    assert main(["table", str(tmp_path)]) == 0
    assert "| all runs | 0.300 (0.000–1.000), 4 |" in capsys.readouterr().out
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").stat().st_size > 1000


def test_means_over_different_sets_are_refused(tmp_path) -> None:
    made = make_sweep(tmp_path, "objective=[sspo(), gspo()]")
    for name, more in zip(made.order, ({}, {"short/pass@1": 0.25, "other/avg@4": 0.5}), strict=True):
        make_run(tmp_path / name, [0.0, 1.0], **more)
    with pytest.raises(
        LabError, match="pass@1 is the mean over sums/pass@1 in the run objective=sspo,seed=0, and over"
    ):
        read_results(tmp_path)
    assert read_results(tmp_path, measure="sums/pass@1").finals("gspo()") == {"": [1.0]}


def test_a_number_without_a_mean_is_named(tmp_path) -> None:
    made = make_sweep(tmp_path, "objective=[sspo()]")
    make_run(tmp_path / made.order[0], [0.0, float("nan")])
    with pytest.raises(LabError, match=r"sums/pass@1.*nan.* at update 1, which is not finite"):
        read_results(tmp_path)


def test_the_picture_has_a_panel_for_each_setting(sweep, capsys) -> None:
    picture = sweep / "curves.svg"
    assert main(["plot", str(sweep), "--output", str(picture)]) == 0
    text = picture.read_text()
    for words in ("updates_per_sync=2", "updates_per_sync=8", "ours", "over 3 seeds"):
        assert f"<!-- {words}" in text or words in text, words
