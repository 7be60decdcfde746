"""`--set field.field=value`."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from megatron_sspo.config.objectives import CheckedObjective
from megatron_sspo.config.overrides import config_to_json, override
from megatron_sspo.config.validate import validate
from megatron_sspo.errors import UserError
from megatron_sspo.objective import AtanLog, Penalties, SigLog, arithmetic, grpo, sspo

OWN, OWN_GATE = grpo(0.1, 0.3), SigLog()


@dataclass(frozen=True)
class Inner:
    number: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    what: str
    number: float = 1.0


@dataclass(frozen=True)
class Outer:
    count: int = 1
    ratio: Annotated[float, Field(allow_inf_nan=False)] = 0.5
    on: bool = False
    name: str = "a"
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    needs: Needs | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    objective: CheckedObjective = field(default_factory=sspo)
    penalties: Penalties = field(default_factory=Penalties)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("count=3", Outer(count=3)),
        ("ratio=2", Outer(ratio=2.0)),
        ("on=true", Outer(on=True)),
        ("name=b=c", Outer(name="b=c")),
        ("inner.number=2", Outer(inner=Inner(2.0))),
        ('inner.stop=["</a>", ","]', Outer(inner=Inner(stop=("</a>", ",")))),
        ("inner.stop=</a>", Outer(inner=Inner(stop=("</a>",)))),
        ("inner.stop=none", Outer(inner=Inner(stop=()))),
        ("inner.stop=('a', \"b\")", Outer(inner=Inner(stop=("a", "b")))),
        ("maybe=none", Outer(maybe=None)),
        ("maybe.number=3", Outer(maybe=Inner(3.0))),
        ("options.size=3", Outer(options={"size": 3})),
        ("options.fields.question=q", Outer(options={"fields": {"question": "q"}})),
        ('options={"a": [1, 2]}', Outer(options={"a": [1, 2]})),
        ("objective.token_gate.tau_pos=0.4", Outer(objective=sspo(AtanLog(tau_neg=0.3, tau_pos=0.4)))),
        ("objective.pool=arithmetic", Outer(objective=dataclasses.replace(sspo(), pool=arithmetic))),
        ("objective=tests.config.test_overrides:OWN", Outer(objective=OWN)),
        (
            f"objective.token_gate={__file__}:OWN_GATE",
            Outer(objective=dataclasses.replace(sspo(), token_gate=SigLog())),
        ),
        ("objective=grpo(eps_high=0.28)", Outer(objective=grpo(eps_high=0.28))),
        ("objective=sspo(SigLog(0.6,0.5))", Outer(objective=sspo(SigLog(0.6, 0.5)))),
    ],
)
def test_each_kind_of_field(assignment, expected) -> None:
    changed = override(Outer(), [assignment])
    assert changed == expected
    assert repr(changed) == repr(expected), "1 == True == 1.0, and their types differ"


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
    ("assignment", "message"),
    [
        ("count", "'count' has no '='"),
        ("cont=3", "no field 'cont': did you mean 'count'? the fields here are count, ratio, on, name"),
        ("needs.number=3", "needs is None, so the recipe must set its other fields first"),
        ("ratio=fast", "ratio is 'fast': it must be a valid number"),
        ("inner=3", "inner is a group of fields: set one, such as inner.number="),
        ("objective=sspo", "objective is the function sspo: it must be an objective, such as sspo()"),
        ("objective.token_gate.tau_pos=-1", "objective.token_gate.tau_pos=-1 is not valid"),
        ("objective=sspo(tau=1)", "cannot be read (sspo() got an unexpected keyword argument 'tau'): write a value"),
        ("objective=mystery(1)", "mystery is neither a literal nor a known name"),
    ],
)
def test_what_is_wrong_is_named(assignment, message) -> None:
    start = Outer(options={"size": {"x": 3}})
    with pytest.raises(UserError) as caught:
        validate(override(start, [assignment]), Outer)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('touch {}')",
        "open('{}', 'w')",
        "sspo(open('{}', 'w'))",
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
