"""Finding the Python object of a name in the configuration."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Weights:
    answer: float = 1.0


def annotated(
    names: tuple[str, ...] = (),
    path: Path = Path(),
    weights: Weights = Weights(),
    share: float = 0.0,
    each: Iterable[str] = (),
) -> tuple[Any, ...]:
    return names, path, weights, share, each


def test_options_go_to_the_function_beside_what_the_caller_gives() -> None:
    assert call_with_options(build, {"size": 3}, "the engine 'x'", "path") == ("path", 3, 0)
    assert call_with_options(open_ended, {"size": 3, "other": 4}, "x") == 7


@pytest.mark.parametrize(
    ("function", "options", "num_given", "message"),
    [
        (build, {"sise": 3}, 1, "the engine 'x' has no option sise: its options are size, seed"),
        (build, {"size": 1, "model_path": "p"}, 1, "has no option model_path"),
        (build, {}, 1, "the engine 'x' needs the option size: its options are size, seed"),
        (open_ended, {"other": 1}, 0, "needs the option size"),
        (annotated, {"share": "0.5"}, 0, "the engine 'x': the option share is '0.5': it must be a valid number"),
    ],
)
def test_options_that_do_not_fit_name_those_that_do(function, options, num_given, message) -> None:
    with pytest.raises(UserError) as caught:
        check_options(function, options, "the engine 'x'", num_given=num_given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("names", ["a", "b"], ("a", "b")),
        ("path", "data/x.csv", Path("data/x.csv")),
        ("weights", {"answer": 2.0}, Weights(2.0)),
        ("each", ["a"], ["a"]),
    ],
)
def test_a_function_receives_the_type_that_its_annotation_names(name, value, expected) -> None:
    """A recipe writes options as JSON, which has no tuple, set, path, enumeration, dataclass or date."""
    found = call_with_options(annotated, {name: value}, "the reward 'x'")[list(annotated.__annotations__).index(name)]
    assert type(found) is type(expected) and found == expected


def members(**members: Any) -> Any:
    """Returns an object of a class with these members."""
    return type("Own", (), members)()


async def close_later(self) -> None: ...


def score_later(self, prompts, responses):
    yield {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "x is built as None, which has no score and no close"),
        (members(close=print), "which has no score: let it return an object with score, "),
        (members(score=print, close=close_later), "has the method close, which is async or has a yield"),
        (members(score=score_later, close=print), "has the method score, which is async or has a yield"),
    ],
)
def test_an_object_that_is_not_of_its_interface(value, message) -> None:
    with pytest.raises(UserError, match=message):
        check_members(value, Reward, "x")


def test_a_function_with_other_parameters_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def reward(): ...\ndef check_prompt(): ...\n")
    with pytest.raises(UserError, match=r"^check_prompt cannot be called as it has to be: check_prompt\(\) takes 0 "):
        check_prompts(load_file(path).reward, [Prompt(id="a", tokens=(0,), answer="")])
