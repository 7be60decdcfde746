"""Finding the Python object of a name in the configuration."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from megatron_sspo.config.resolve import (
    call_with_options,
    check_members,
    check_options,
    load_file,
    resolve,
    short_names,
)
from megatron_sspo.environment.protocol import Environment, Episode
from megatron_sspo.errors import UserError
from megatron_sspo.reward.math import reward
from megatron_sspo.reward.protocol import Reward, check_prompts
from megatron_sspo.rollout.engine import RolloutEngine
from megatron_sspo.rollout.open_episodes import open_episodes
from megatron_sspo.run import Rollouts
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


def test_short_names_are_the_files_that_define_the_attribute() -> None:
    assert "embedded" in short_names("rollout/engines", "engine")
    assert "collect" not in short_names("rollout", "engine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "there is no reward named 'nobody': choose one of "),
        ("", "there is no reward named ''"),
        ("mine.py", "or name your own as mine.py:reward or package.module:reward"),
        ("../run", "there is no reward named '../run'"),
        ("format", "no attribute 'reward'"),
        ("no.such.module:thing", "cannot import 'no.such.module'"),
        ("math:thing", "'math:thing' resolves to math, which has no attribute 'thing'"),
        ("/nowhere/file.py:thing", "/nowhere/file.py is not a Python file"),
    ],
)
def test_what_is_wrong_is_named(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve("reward", name, "reward")
    assert message in str(caught.value)


def test_a_file_without_the_attribute_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("value = 1\n")
    with pytest.raises(UserError, match=rf"resolves to {path}, which has no attribute 'valeu'"):
        resolve("reward", f"{path}:valeu", "reward")


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
            "the engine 'x' needs the option size: its options are size, seed, and it is called with nothing else",
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


def typed(
    count: int = 1,
    share: float = 0.5,
    names: Sequence[str] = (),
    server: Mapping[str, Any] | None = None,
    how: Literal["a", "b"] = "a",
    flag: bool = False,
    path: str | Path = "",
) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"count": 2, "share": 1, "names": ["x"], "server": {"a": 1}, "how": "b", "flag": True, "path": "p"},
        {"names": ("x",), "server": None, "path": Path("p")},
    ],
)
def test_values_of_the_parameters_types_are_taken(options) -> None:
    check_options(typed, options, "x")


@dataclass(frozen=True)
class Weights:
    answer: float = 1.0


class Kind(Enum):
    EXACT = "exact"


def annotated(
    names: tuple[str, ...] = (),
    units: set[str] = frozenset(),  # pyright: ignore
    path: Path = Path(),
    kind: Kind = Kind.EXACT,
    weights: Weights = Weights(),
    day: date = date.min,
    share: float = 0.0,
    each: Iterable[str] = (),
) -> tuple[Any, ...]:
    return names, units, path, kind, weights, day, share, each


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("names", ["a", "b"], ("a", "b")),
        ("units", ["km"], {"km"}),
        ("path", "data/x.csv", Path("data/x.csv")),
        ("kind", "exact", Kind.EXACT),
        ("weights", {"answer": 2.0}, Weights(2.0)),
        ("day", "2026-01-31", date(2026, 1, 31)),
        ("share", 1, 1.0),
        ("each", ["a"], ["a"]),
    ],
)
def test_a_function_receives_the_type_that_its_annotation_names(name, value, expected) -> None:
    """A recipe writes options as JSON, which has no tuple, set, path, enumeration, dataclass or date."""
    found = call_with_options(annotated, {name: value}, "the reward 'x'")[list(annotated.__annotations__).index(name)]
    assert type(found) is type(expected) and found == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", "two"),
        ("count", 1.5),
        ("count", True),
        ("share", "0.5"),
        ("names", "x"),
        ("names", [1]),
        ("server", "x"),
        ("how", "c"),
        ("flag", 1),
        ("path", 3),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name, value) -> None:
    expected = "one of 'a', 'b'" if name == "how" else "a value of the type .*"
    with pytest.raises(UserError, match=f"the engine 'x': the option {name} must be {expected}, but is .*"):
        check_options(typed, {name: value}, "the engine 'x'")


def members(**members: Any) -> Any:
    """Returns an object of a class with these members."""
    return type("Own", (), members)()


@pytest.mark.parametrize(
    ("interface", "value", "message"),
    [
        (Reward, members(score=lambda self, prompts: [], close=lambda self: None), "(too many positional arguments)"),
        (
            Reward,
            members(score=lambda self, a, b, c: [], close=lambda self: None),
            "'c'): define it as def score(self, ",
        ),
        (Reward, members(score=lambda a, b: [], close=lambda self: None), "define it as def score(self, prompts, resp"),
        (Reward, members(score=3, close=lambda self: None), "which has no score: let it return an object with score, "),
        (Reward, members(close=lambda self: None), "which has no score: let it return an object with score, close"),
        (Reward, members(score=lambda self, a, b: [], close=lambda self, x: 0), "define it as def close(self)"),
        (Episode, None, "x is built as None, which has no observe and no close"),
        (
            Episode,
            members(observe=lambda self: "", close=lambda self: None),
            "define it as def observe(self, response)",
        ),
        (Environment, members(open=lambda self, prompt: 0), "which has no stop and no max_episodes and no metrics"),
        (
            RolloutEngine,
            members(
                replicated=True,
                start=lambda self, prompts, sampling, group_size, seed: 0,
                **dict.fromkeys(("load_weights", "release_memory", "metrics", "close"), lambda *arguments: None),
            ),
            "def start(self, prompts, sampling, *, group_size, seed, environment)",
        ),
    ],
)
def test_an_object_without_the_members_of_its_interface(interface: type, value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_members(value, interface, "x")
    assert message in str(caught.value)


def test_a_method_that_a_call_would_not_run_is_refused() -> None:
    async def close(self) -> None: ...

    def score(self, prompts, responses):
        yield {}

    for own in (members(score=lambda self, prompts, responses: [], close=close), members(score=score, close=print)):
        with pytest.raises(UserError, match=r"whose (close|score) is async or has a yield, so that a call would not"):
            check_members(own, Reward, "x")


def test_a_property_that_raises_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("class Own:\n    @property\n    def score(self):\n        raise RuntimeError('no')\n")
    with pytest.raises(UserError, match=r"own.py, line 4 .*: RuntimeError: no$"):
        check_members(load_file(path).Own(), Reward, "x")


def test_an_object_may_have_other_names_and_more_parameters() -> None:
    own = members(score=staticmethod(lambda a, b, c=0: []), close=lambda self, *more: None)
    check_members(own, Reward, "x")


def test_a_function_with_other_parameters_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def reward(): ...\ndef check_prompt(): ...\n")
    with pytest.raises(UserError, match=r"^check_prompt cannot be called as it has to be: check_prompt\(\) takes 0 "):
        check_prompts(load_file(path).reward, [Prompt(id="a", tokens=(0,), answer="")])


def test_a_file_with_null_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_bytes("x = 1".encode("utf-16"))
    with pytest.raises(UserError, match=rf"^{path} is not Python: source code string cannot contain null bytes$"):
        load_file(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("stop='</a>', max_episodes=1", "has the stop '</a>' and the max_episodes 1: they must be a tuple of strings"),
        ("stop=(), max_episodes=0", "has the stop () and the max_episodes 0: they must be a tuple of strings"),
    ],
)
def test_values_of_an_environment(tmp_path: Path, values: str, message: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from types import SimpleNamespace\n"
        "def build():\n"
        f"    return SimpleNamespace({values}, open=lambda prompt: 0, metrics=dict, close=lambda: 0)\n"
    )
    opened = open_episodes(Rollouts(environment=f"{path}:build"), max_prompt_tokens=8)
    with pytest.raises(UserError) as caught, opened:
        pass
    assert message in str(caught.value)


def test_an_unknown_field_of_a_dataclass_in_an_option_is_refused() -> None:
    with pytest.raises(UserError, match=r"the option weights must be a value of the type .*, but is .*answr"):
        check_options(annotated, {"weights": {"answr": 2.0}}, "the reward 'x'")
