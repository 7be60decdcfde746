"""The values of a sweep, and the names of its runs."""

import pytest

from sspo_lab.grid import Sweep
from sspo_lab.trainer import LabError
from sspo_lab.values import read_vary


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("updates_per_sync=[2, 8]", "updates_per_sync", [("2", ""), ("8", "")]),
        (
            "objective=[sspo(), sspo(SigLog(0.6, 0.5)), gspo(),]",
            "objective",
            [("sspo()", ""), ("sspo(SigLog(0.6, 0.5))", ""), ("gspo()", "")],
        ),
        ("objective={paper: sspo(), hard: x.py:f}", "objective", [("sspo()", "paper"), ("x.py:f", "hard")]),
        ("objective={'a, b: c': sspo()}", "objective", [("sspo()", "a, b: c")]),
        (
            "model.path=[models/Qwen3-30B-A3B, 'a, b', \"\"]",
            "model.path",
            [("models/Qwen3-30B-A3B", ""), ("a, b", ""), ("", "")],
        ),
        ("optimizer.lr = [1e-4,3e-4]", "optimizer.lr", [("1e-4", ""), ("3e-4", "")]),
        ("x.y=[[1, 2], {'a': 3}]", "x.y", [("[1, 2]", ""), ("{'a': 3}", "")]),
    ],
)
def test_values_are_read(text, field, values) -> None:
    name, found = read_vary(text)
    assert name == field and [(value.text, value.label) for value in found] == values


@pytest.mark.parametrize(
    "text",
    [
        *("objective", "=[1]", "updates_per_sync=8", "updates_per_sync=[]", "updates_per_sync=[2,,8]"),
        *("objective={sspo()}", "objective={: sspo()}", "objective={a: }", "objective=[sspo(]", "objective=['a]"),
    ],
)
def test_what_cannot_be_read_is_named(text) -> None:
    with pytest.raises(LabError, match=r"cannot be read: write it as field.field=\[value, value\]"):
        read_vary(text)
    with pytest.raises(LabError, match="--vary seed is not possible"):
        read_vary("seed=[1, 2]")


def order(*vary: str, seeds: int = 1) -> list[str]:
    return list(Sweep(recipe="r.py").extended(dict(map(read_vary, vary)), seeds).order)


def test_a_run_has_a_readable_name() -> None:
    assert order("objective=[sspo(), gspo()]", "updates_per_sync=[2, 8]", seeds=2)[:5] == [
        "objective=sspo,updates_per_sync=2,seed=0",
        "objective=sspo,updates_per_sync=8,seed=0",
        "objective=gspo,updates_per_sync=2,seed=0",
        "objective=gspo,updates_per_sync=8,seed=0",
        "objective=sspo,updates_per_sync=2,seed=1",
    ]
    assert order("objective=[sspo(SigLog(0.6, 0.5))]") == ["objective=sspo-SigLog-0.6-0.5,seed=0"]
    assert order("optimizer.lr=[3e-4, -1, 1]") == [f"optimizer.lr={n},seed=0" for n in ("3e-4", "-1", "1")]
    assert order("model.path=['/', '$(x)']") == ["model.path=value,seed=0", "model.path=x,seed=0"]


@pytest.mark.parametrize(
    "values", ["[a/b, a b, A-B]", "[\udcff, \udcfe]", f"[{'v' * 300}, {'v' * 301}]", f"[{'目的' * 50}]"]
)
def test_each_run_has_a_name_of_its_own_that_a_disk_takes(values) -> None:
    found = order(f"model.path={values}")
    assert len({name.casefold() for name in found}) == len(found) == values.count(",") + 1
    assert all(len(name.encode(errors="replace")) <= 200 for name in found)


def test_values_and_seeds_are_added_behind_what_is_there() -> None:
    vary = dict([read_vary("objective=[sspo(), gspo()]"), read_vary("updates_per_sync=[2]")])
    first = Sweep(recipe="r.py").extended(vary, 2)
    more = dict([read_vary("objective=[grpo(), gspo()]"), read_vary("updates_per_sync=[2, 8]")])
    second = first.extended(more, 3)
    assert list(second.order[: len(first.order)]) == list(first.order)
    assert len(second.order) == 3 * 2 * 3 and second.seeds == 3
    assert [value.text for value in second.vary["objective"]] == ["sspo()", "gspo()", "grpo()"]
    assert second.extended(vary, 1) == second


def test_what_contradicts_the_sweep_is_refused() -> None:
    sweep = Sweep(recipe="r.py").extended(dict([read_vary("objective={paper: sspo(), hard: gspo()}")]), 1)
    for vary, message in (
        ("updates_per_sync=[2]", "the sweep varies objective, but this command varies updates_per_sync"),
        ("objective={ours: sspo()}", "the label 'paper' in this sweep"),
        ("objective={paper: grpo()}", "the label 'paper' in this sweep"),
    ):
        with pytest.raises(LabError, match=message):
            sweep.extended(dict([read_vary(vary)]), 1)
    assert sweep.extended(dict([read_vary("objective=[sspo()]")]), 1) == sweep
