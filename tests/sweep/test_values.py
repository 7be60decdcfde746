"""The values of a sweep, and the names of its runs."""

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.sweep.grid import Sweep
from megatron_sspo.sweep.values import GivenValue, merge_values, read_vary


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("updates_per_sync=[2, 8]", "updates_per_sync", [("2", ""), ("8", "")]),
        (
            "objective=[sspo(), sspo(SigLog(0.6, 0.5)), gspo(),]",
            "objective",
            [("sspo()", ""), ("sspo(SigLog(0.6, 0.5))", ""), ("gspo()", "")],
        ),
        ("objective={paper: sspo(), hard: gspo()}", "objective", [("sspo()", "paper"), ("gspo()", "hard")]),
        ("objective={'a, b: c': sspo()}", "objective", [("sspo()", "a, b: c")]),
        ("model.path=[models/Qwen3-30B-A3B, 'a, b']", "model.path", [("models/Qwen3-30B-A3B", ""), ("a, b", "")]),
        ("optimizer.lr = [1e-4,3e-4]", "optimizer.lr", [("1e-4", ""), ("3e-4", "")]),
        ("x.y=[[1, 2], {'a': 3}]", "x.y", [("[1, 2]", ""), ("{'a': 3}", "")]),
        (r"x=['a\\', 'b\'', c]", "x", [("a\\", ""), ("b'", ""), ("c", "")]),
    ],
)
def test_values_are_read(text, field, values) -> None:
    assert read_vary(text) == (field, [GivenValue(*value) for value in values])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("objective", "has no '='"),
        ("=[1]", "has no field before the '='"),
        ("updates_per_sync=8", 'has no list of values: write it as --vary updates_per_sync="[value, value]"'),
        ("updates_per_sync=[]", "has no values"),
        ("updates_per_sync=[2,,8]", "a comma with no value before it"),
        ("updates_per_sync=[2, 2]", "has '2' twice"),
        ("objective={a: sspo(), a: gspo()}", "has 'a' twice"),
        ("objective={sspo()}", "has 'sspo()' without a label"),
        ("objective={: sspo()}", "a value or a label that is empty"),
        ("objective={a: }", "a value or a label that is empty"),
        ("objective=[sspo(]", "lacks a closing ')'"),
        ("objective=[sspo)]", "has a ')' that closes nothing"),
        ("objective=['a]", 'lacks a closing "\'"'),
        ("seed=[1, 2]", "--seeds is the number of seeds"),
        ("name=[a, b]", "--vary name is not possible"),
        ("output=[a, b]", "--vary output is not possible"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, message) -> None:
    with pytest.raises(UserError) as raised:
        read_vary(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def names(**vary: str) -> list[str]:
    fields = dict(read_vary(f"{field.replace('__', '.')}={values}") for field, values in vary.items())
    return list(Sweep(recipe="r.py").extended(fields, 1).order)


def test_a_run_has_a_readable_name() -> None:
    found = Sweep(recipe="r.py").extended(
        dict([read_vary("objective=[sspo(), gspo()]"), read_vary("updates_per_sync=[2, 8]")]), 2
    )
    assert list(found.order[:5]) == [
        "objective=sspo,updates_per_sync=2,seed=0",
        "objective=sspo,updates_per_sync=8,seed=0",
        "objective=gspo,updates_per_sync=2,seed=0",
        "objective=gspo,updates_per_sync=8,seed=0",
        "objective=sspo,updates_per_sync=2,seed=1",
    ]
    last = found.cells()[-1]
    assert last.assignments == ("objective=gspo()", "updates_per_sync=8", "seed=1")
    assert last.labels == {"objective": "gspo()", "updates_per_sync": "8"} and last.seed == 1
    assert names(objective="[sspo(SigLog(0.6, 0.5))]") == ["objective=sspo-SigLog-0.6-0.5,seed=0"]
    assert names(optimizer__lr="[3e-4, -1, 1]") == [f"optimizer.lr={n},seed=0" for n in ("3e-4", "-1", "1")]
    assert names(objective="{der Aufsatz: sspo()}") == ["objective=der-Aufsatz,seed=0"]
    assert names(model__path="['/', '..', '$(x)']") == [
        "model.path=value,seed=0",
        "model.path=..,seed=0",
        "model.path=x,seed=0",
    ]


def test_names_that_would_be_the_same_get_a_digest_and_keep_it() -> None:
    first = names(model__path="[a/b, a b, A-B]")
    assert first[0] == "model.path=a-b,seed=0"
    assert len({name.casefold() for name in first}) == 3 and all("~" in name for name in first[1:])
    values = merge_values(
        merge_values((), [GivenValue("a b"), GivenValue("a/b")], "model.path"), [GivenValue("A-B")], "model.path"
    )
    assert [value.name for value in values] == ["a-b", *(value.name for value in values[1:])]
    again = merge_values(values, [GivenValue("a/b"), GivenValue("a b")], "model.path")
    assert again == values


def test_values_that_are_not_utf8_have_names_of_their_own() -> None:
    found = names(model__path="[\udcff, \udcfe]")
    assert found[0] == "model.path=value,seed=0" and found[1].startswith("model.path=value~")


def test_a_long_name_is_cut_and_still_its_own() -> None:
    vary = {
        f"rollouts.options.a_field_of_some_length_{n}": [GivenValue("v" * 300), GivenValue("v" * 301)] for n in range(4)
    }
    found = Sweep(recipe="r.py").extended(vary, 3)
    assert len(set(found.order)) == 2**4 * 3
    assert all(len(name.encode()) <= 200 for name in found.order)
    japanese = Sweep(recipe="r.py").extended({"objective": [GivenValue("sspo()", "目的" * 50)]}, 1).order[0]
    assert japanese.startswith("objective=目的目的") and len(japanese.encode()) < 100


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
        ("objective={ours: sspo()}", "has the label 'paper' in this sweep, not 'ours'"),
        ("objective={paper: grpo()}", "'paper' is the label of objective=sspo()"),
    ):
        with pytest.raises(UserError, match=message.replace("(", r"\(").replace(")", r"\)")):
            sweep.extended(dict([read_vary(vary)]), 1)
    assert sweep.extended(dict([read_vary("objective=[sspo()]")]), 1) == sweep
    with pytest.raises(UserError, match="the sweep varies objective, but this command varies nothing"):
        sweep.extended({}, 2)
