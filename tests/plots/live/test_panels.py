"""The numbers of a row that the live page shows."""

from typing import Any

from megatron_sspo.plots.live import panels
from tests.plots.live.runs import metrics


def shown(row: dict[str, Any]) -> dict[str, list[float | None]]:
    """Returns the numbers of each panel by its title."""
    values = panels.values(row)
    return {panel["title"]: [values[column] for column in panel["columns"]] for panel in panels.describe()}


def test_each_panel_has_its_numbers() -> None:
    found = shown(metrics(2))
    assert found["reward"] == [0.2]
    assert found["token entropy"] == [0.5]
    assert found["gradient norm"] == [1.5]
    assert found["KL(π_old ‖ π_θ) *"] == [1e-3]
    assert found["tokens of low weight *"] == [0.25, 0.125]
    assert found["time of an update"] == [3.0, 2.0]
    assert found["held-out pass@1, greedy"] == []
    assert found["response length"] == [None]
    assert panels.values(metrics(2))[0] == 2


def test_an_on_policy_update_has_no_ratios() -> None:
    found = shown(metrics(1))
    assert found["KL(π_old ‖ π_θ) *"] == [None]
    assert found["tokens of low weight *"] == [None, None]
    assert found["gradient norm"] == [1.5]


def test_what_cannot_be_drawn() -> None:
    changes = {"reward/mean": None, "policy/entropy": "x", "policy/grad_norm": 10**400, "seconds/update": None}
    found = shown(metrics(2, **changes))
    assert found["reward"] == found["token entropy"] == found["gradient norm"] == [None]
    assert found["time of an update"] == [2.0, 2.0]
    assert shown({"update": 1})["time of an update"] == [None, None]


def test_pass_at_1_of_every_set() -> None:
    row = {"update": 4, "a/pass@1": 0.5, "a/pass@1/low": 0.25, "a/pass@1/high": 0.75, "a/b/pass@1": 1.0, "pass@1": 0.0}
    row |= {"a/pass@2": 1.0, "a/reward": 2.0}
    assert panels.passes(row) == {"a": [0.5, 0.25, 0.75], "a/b": [1.0, None, None], "": [0.0, None, None]}
