"""`--set field.field=value`."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from megatron_sspo.config.objectives import CheckedObjective
from megatron_sspo.config.overrides import config_to_json, override
from megatron_sspo.config.tree import validate
from megatron_sspo.errors import UserError
from megatron_sspo.objective import AtanLog, Penalties, SigLog, arithmetic, grpo, sspo

OWN, OWN_GATE = grpo(0.1, 0.3), SigLog()


@dataclass(frozen=True)
class Inner:
    number: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int = 1
    ratio: Annotated[float, Field(allow_inf_nan=False)] = 0.5
    on: bool = False
    name: str = "a"
    mode: Literal["left", "right"] = "left"
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    objective: CheckedObjective = field(default_factory=sspo)
    penalties: Penalties = field(default_factory=Penalties)


@dataclass(frozen=True)
class OfOnesOwn:
    """Fields as an objective of one's own may have them."""

    weights: list[float] = field(default_factory=list)
    number: int | float = 1
    anything: Any = None


@dataclass(frozen=True)
class OfATypeChecker:
    gate: "NameOfATypeChecker" = None  # noqa: F821  # pyright: ignore


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("count=3", Outer(count=3)),
        ("ratio=1e-6", Outer(ratio=1e-6)),
        ("ratio=2", Outer(ratio=2.0)),
        ("on=true", Outer(on=True)),
        ("on=False", Outer(on=False)),
        ("name=b=c", Outer(name="b=c")),
        ("name=7", Outer(name="7")),
        (" name = b ", Outer(name="b")),
        ("mode=right", Outer(mode="right")),
        ("inner.number=2", Outer(inner=Inner(2.0))),
        ('inner.stop=["</a>", ","]', Outer(inner=Inner(stop=("</a>", ",")))),
        ("inner.stop=</a>", Outer(inner=Inner(stop=("</a>",)))),
        ("inner.stop=5", Outer(inner=Inner(stop=("5",)))),
        ("inner.stop=", Outer(inner=Inner(stop=()))),
        ("inner.stop=\n", Outer(inner=Inner(stop=("\n",)))),
        ("inner.stop=none", Outer(inner=Inner(stop=()))),
        ("inner.stop=('a', \"b\")", Outer(inner=Inner(stop=("a", "b")))),
        ("inner.stop=(", Outer(inner=Inner(stop=("(",)))),
        ("inner.stop=[", Outer(inner=Inner(stop=("[",)))),
        ("maybe=none", Outer(maybe=None)),
        ("limit=4", Outer(limit=4)),
        ("limit=null", Outer(limit=None)),
        ("options.size=3", Outer(options={"size": 3})),
        ("options.exact=False", Outer(options={"exact": False})),
        ("options.exact=true", Outer(options={"exact": True})),
        ("options.split=held_out", Outer(options={"split": "held_out"})),
        ("options.fields.question=q", Outer(options={"fields": {"question": "q"}})),
        ('options={"a": [1, 2]}', Outer(options={"a": [1, 2]})),
        ("objective.token_gate.tau_pos=0.4", Outer(objective=sspo(AtanLog(tau_neg=0.3, tau_pos=0.4)))),
        ("objective.token_gate=SigLog(0.6, 0.5)", Outer(objective=sspo(SigLog(0.6, 0.5)))),
        ("objective.pool=arithmetic", Outer(objective=dataclasses.replace(sspo(), pool=arithmetic))),
        ("objective=tests.config.test_overrides:OWN", Outer(objective=OWN)),
        (
            f"objective.token_gate={__file__}:OWN_GATE",
            Outer(objective=dataclasses.replace(sspo(), token_gate=SigLog())),
        ),
        ("objective=grpo(eps_high=0.28)", Outer(objective=grpo(eps_high=0.28))),
        ("objective=sspo(SigLog(0.6,0.5))", Outer(objective=sspo(SigLog(0.6, 0.5)))),
        ("objective= sspo(SigLog(0.6,0.5)) ", Outer(objective=sspo(SigLog(0.6, 0.5)))),
        ("penalties.entropy_coef=-0.5", Outer(penalties=Penalties(entropy_coef=-0.5))),
        ("penalties=Penalties(entropy_coef=-0.5)", Outer(penalties=Penalties(entropy_coef=-0.5))),
    ],
)
def test_each_kind_of_field(assignment, expected) -> None:
    changed = override(Outer(), [assignment])
    assert changed == expected
    assert repr(changed) == repr(expected), "1 == True == 1.0, and their types differ"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("weights=[1, 0.5]", OfOnesOwn(weights=[1.0, 0.5])),
        ("number=0.5", OfOnesOwn(number=0.5)),
        ("number=2", OfOnesOwn(number=2)),
        ("anything=[1]", OfOnesOwn(anything=[1])),
        ("gate=3", OfATypeChecker(gate=3)),
    ],
)
def test_each_kind_of_field_of_ones_own_objective(assignment, expected) -> None:
    assert repr(override(type(expected)(), [assignment])) == repr(expected)


def test_a_value_of_another_type_than_ones_own_field() -> None:
    with pytest.raises(UserError, match=r"weights is 'fast': it must be a list, each item a finite number"):
        override(OfOnesOwn(), ["weights=fast"])


def test_an_objective_in_a_file_whose_path_has_spaces_and_signs(tmp_path: Path) -> None:
    folder = tmp_path / "my objectives + größe"
    folder.mkdir()
    (folder / "own.py").write_text("from megatron_sspo.objective import grpo\nmine = grpo(0.1, 0.3)\n")
    assert override(Outer(), [f"objective={folder}/own.py:mine"]).objective == OWN


def test_assignments_go_from_left_to_right_and_the_original_is_untouched() -> None:
    start = Outer()
    assert override(start, ["count=2", "options.a=1", "options.b=2", "count=5"]) == Outer(
        count=5, options={"a": 1, "b": 2}
    )
    assert override(start, ["objective=sspo(SigLog(0.6,0.5))", "objective.token_gate.tau_neg=1"]).objective == sspo(
        SigLog(1.0, 0.5)
    )
    assert start == Outer()


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("count", ["'count' has no '='"]),
        ("cont=3", ["no field 'cont'", "did you mean 'count'?", "count, ratio, on, name"]),
        ("inner.nmber=3", ["no field 'inner.nmber'", "did you mean 'number'?", "number, stop"]),
        ("count.x=3", ["no field 'count.x'", "has no fields"]),
        ("maybe.number=3", ["no field 'maybe.number'", "maybe is None"]),
        ("options.size.x.y=3", []),
        ("count=1.5", ["count is '1.5': it must be a whole number"]),
        ("count=", ["count is '': it must be a whole number"]),
        ("count=" + "9" * 5000, ["count is '999", "it must be a whole number"]),
        ("ratio=fast", ["ratio is 'fast': it must be a finite number"]),
        ("ratio=nan", ["ratio is nan: it must be a finite number"]),
        ("ratio=1e999", ["ratio is inf: it must be a finite number"]),
        ("ratio=10**10**10", ["ratio is '10**10**10': it must be a finite number"]),
        ("on=1", ["on is '1': it must be True or False"]),
        ("on=yes", ["on is 'yes': it must be True or False"]),
        ("mode=up", ["mode is 'up': it must be one of 'left', 'right'"]),
        ("inner.stop=[1]", ["inner.stop[0] is 1: it must be a string"]),
        ("options=[1]", ["options is [1]: it must be a dict"]),
        ("options=10**10**10", ["options is '10**10**10': it must be a dict"]),
        ("options={1: 2}", ["options has the key 1: a key must be a string"]),
        ("options.=3", ["there is no 'options.'"]),
        (".".join(["options"] * 100_000) + "=3", ["has 100000 names: a field has at most 30"]),
        ("=3", ["there is no field ''"]),
        ("inner=3", ["inner is a group of fields", "inner.number="]),
        ("objective=sspo", ["objective is the function sspo, not called", "an objective, such as sspo()"]),
        ("objective=Clip(0.1, 0.2)", ["objective is Clip(eps_low=0.1, eps_high=0.2)", "an objective, such as sspo()"]),
        (
            "objective.token_gate=SigLog",
            ["SequenceObjective.token_gate is the class SigLog, and must be a gate, such as AtanLog()"],
        ),
        (
            "objective.token_gate=geometric",
            ["SequenceObjective.token_gate is the function geometric, and must be a gate"],
        ),
        ("objective.pool=Clip(0.1, 0.2)", ["pool is Clip(", "must be a function, such as geometric"]),
        ("objective.token_gate.tau_pos=-1", ["objective.token_gate.tau_pos=-1 is not valid", "from 1e-12 to 1e12"]),
        ("objective=sspo(SigLog(-1, 1))", ["cannot be read"]),
        ("objective=sspo(tau=1)", ["cannot be read", "tau"]),
        ("options={'size': 1, 'size': 2}", ["options", "'size' twice"]),
        ('options={"a": [{"size": 1, "size": true}]}', ["options", "'size' twice"]),
        ("objective=sspo(**{})", ["cannot be read"]),
        ("objective=sspo(gate=AtanLog(), gate=SigLog())", ["cannot be read (sspo is given gate twice)"]),
        ("objective=sspo(AtanLog(tau_pos=1, tau_neg=2, tau_pos=3))", ["(AtanLog is given tau_pos twice)"]),
        ("objective=sspo(", ["cannot be read ('(' was never closed): write", "or file.py:attribute"]),
        ("objective=sspo(" + "(" * 10_000 + ")" * 10_001, ["cannot be read"]),
        ("objective=" + "-" * 100_000 + "1", ["cannot be read"]),
        ("objective=sspo(10**10**10)", ["cannot be read", "neither a literal"]),
        ("objective=sspo('a' * 10**10)", ["cannot be read", "neither a literal"]),
        ("penalties=none", ["write a value such as Penalties(), or set a field, such as penalties.kl_coef=..."]),
        ("objective=mystery(1)", ["cannot be read", "mystery", "grpo"]),
    ],
)
def test_what_is_wrong_is_named(assignment, parts) -> None:
    start = Outer(options={"size": {"x": 3}})
    with pytest.raises(UserError) as caught:
        validate(override(start, [assignment]), Outer)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch {}')",
        "open('{}', 'w')",
        "sspo.__globals__['__builtins__']['open']('{}', 'w')",
        "sspo(open('{}', 'w'))",
        "[open('{}', 'w') for _ in (1,)]",
        "(lambda: open('{}', 'w'))()",
    ],
)
def test_an_expression_reaches_nothing_but_the_objectives(expression, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        override(Outer(), ["objective=" + expression.format(tmp_path / "owned")])
    assert not list(tmp_path.iterdir())


def test_a_description_is_json() -> None:
    described = config_to_json(
        Outer(
            inner=Inner(stop=("x",)),
            options={"path": Path("/a"), "function": grpo, "object": object(), 1: {2, 3}},
            maybe=Inner(),
        )
    )
    again = json.loads(json.dumps(described))
    assert again["class"] == "Outer"
    assert again["inner"] == {"class": "Inner", "number": 1.0, "stop": ["x"]}
    assert again["options"]["path"] == "/a"
    assert again["options"]["function"] == "grpo"
    assert again["options"]["object"] == "<object object>"
    assert again["options"]["1"] == [2, 3]
    assert again["objective"]["token_gate"] == {"class": "AtanLog", "tau_neg": 0.3, "tau_pos": 0.2}
    assert again["objective"]["pool"] == "geometric"
