"""Finding the Python object of a name in the configuration."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.config.resolve import (
    call_with_options,
    check_members,
    check_options,
    load_file,
    resolve,
)
from megatron_sspo.errors import UserError
from megatron_sspo.reward.math import reward
from megatron_sspo.reward.protocol import Reward, check_prompts
from megatron_sspo.types import Prompt


def test_a_short_name_a_module_and_a_file(tmp_path: Path) -> None:
    assert resolve("reward", "math", "reward") is reward
    assert resolve("reward", "math:pi", "reward") == math.pi, "the module of that name, not the file of the folder"
    path = tmp_path / "mine.py"
    path.write_text("value = [1]\n")
    found = resolve("reward", f"{path}:value", "reward")
    assert found == [1]
    assert resolve("reward", f"{path}:value", "reward") is found, "a file is imported once"
    assert load_file(path).value is found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "there is no reward named 'nobody': choose one of "),
        ("mine.py", "or name your own as mine.py:reward or package.module:reward"),
        ("no.such.module:thing", "cannot import 'no.such.module'"),
        ("math:thing", "'math:thing' resolves to math, which has no attribute 'thing'"),
        ("/nowhere/file.py:thing", "there is no file /nowhere/file.py"),
    ],
)
def test_what_is_wrong_is_named(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve("reward", name, "reward")
    assert message in str(caught.value)


def build(model_path: str, size: int, *, seed: int = 0) -> tuple[str, int, int]:
    return model_path, size, seed


def open_ended(size: int, **more: int) -> int:
    return size + sum(more.values())


def test_options_go_to_the_function_beside_what_the_caller_gives() -> None:
    assert call_with_options(build, {"size": 3}, "the engine 'x'", "path") == ("path", 3, 0)
    assert call_with_options(open_ended, {"size": 3, "other": 4}, "x") == 7


@pytest.mark.parametrize(
    ("function", "options", "num_given", "message"),
    [
        (build, {"sise": 3}, 1, "the engine 'x' has no option sise: its options are size, seed"),
        (build, {"size": 1, "model_path": "p"}, 1, "has no option model_path"),
        (
            build,
            {},
            1,
            "the engine 'x' needs the option size: its options are size, seed",
        ),
        (build, {"size": 1}, 0, "needs the option model_path"),
        (open_ended, {"other": 1}, 0, "needs the option size"),
        (lambda: None, {"size": 1}, 0, "has no option size: it has no options"),
    ],
)
def test_options_that_do_not_fit_name_those_that_do(function, options, num_given, message) -> None:
    with pytest.raises(UserError) as caught:
        check_options(function, options, "the engine 'x'", num_given=num_given)
    assert message in str(caught.value)


@dataclass(frozen=True)
class Weights:
    answer: float = 1.0


class Kind(Enum):
    EXACT = "exact"


def annotated(
    names: tuple[str, ...] = (),
    path: Path = Path(),
    kind: Kind = Kind.EXACT,
    weights: Weights = Weights(),
    share: float = 0.0,
    each: Iterable[str] = (),
) -> tuple[Any, ...]:
    return names, path, kind, weights, share, each


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("names", ["a", "b"], ("a", "b")),
        ("path", "data/x.csv", Path("data/x.csv")),
        ("kind", "exact", Kind.EXACT),
        ("weights", {"answer": 2.0}, Weights(2.0)),
        ("each", ["a"], ["a"]),
    ],
)
def test_a_function_receives_the_type_that_its_annotation_names(name, value, expected) -> None:
    """A recipe writes options as JSON, which has no tuple, set, path, enumeration, dataclass or date."""
    found = call_with_options(annotated, {name: value}, "the reward 'x'")[list(annotated.__annotations__).index(name)]
    assert type(found) is type(expected) and found == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "0.5"}, "the option share is '0.5': it must be a valid number"),
        ({"names": [1]}, r"the option names is \[1\]: it must be a valid tuple"),
        ({"kind": "exakt"}, "the option kind is 'exakt': it must be"),
        ({"weights": {"answr": 2.0}}, "the option weights is {'answr': 2.0}: it must be"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(options, message) -> None:
    with pytest.raises(UserError, match=f"the engine 'x': {message}"):
        check_options(annotated, options, "the engine 'x'")


def members(**members: Any) -> Any:
    """Returns an object of a class with these members."""
    return type("Own", (), members)()


def test_an_object_without_the_members_of_its_interface() -> None:
    for value, message in (
        (
            members(close=lambda self: None),
            "x is built as .*, which has no score: let it return an object with score, ",
        ),
        (None, "x is built as None, which has no score and no close"),
    ):
        with pytest.raises(UserError, match=message):
            check_members(value, Reward, "x")


def test_a_method_that_a_call_would_not_run_is_refused() -> None:
    async def close(self) -> None: ...

    def score(self, prompts, responses):
        yield {}

    for own in (members(score=lambda self, prompts, responses: [], close=close), members(score=score, close=print)):
        with pytest.raises(UserError, match=r"has the method (close|score), which is async or has a yield"):
            check_members(own, Reward, "x")


def test_a_function_with_other_parameters_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def reward(): ...\ndef check_prompt(): ...\n")
    with pytest.raises(UserError, match=r"^check_prompt cannot be called as it has to be: check_prompt\(\) takes 0 "):
        check_prompts(load_file(path).reward, [Prompt(id="a", tokens=(0,), answer="")])
