"""Finding the Python object of a name in the configuration."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from megatron_sspo.config.resolve import call_with_options, check_options, load_file, resolve, short_names
from megatron_sspo.errors import UserError
from megatron_sspo.reward.math import reward


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
