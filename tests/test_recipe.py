"""Loading a recipe by its name."""

import sys
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.recipe import absolute_name, load_recipe

GOOD = """
from megatron_sspo.run import Model, Prompts, Run


def recipe() -> Run:
    return Run(name="a", model=Model(path="m"), prompts=Prompts(source="x.jsonl"), num_updates=1)


def longer() -> Run:
    return Run(name="b", model=Model(path="m"), prompts=Prompts(source="x.jsonl"), num_updates=9)


def wrong_type():
    return {"name": "a"}


def with_arguments(size):
    return recipe()


constant = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    return path


def test_a_file_and_a_function_of_a_file(file: Path) -> None:
    assert load_recipe(str(file)).name == "a"
    assert load_recipe(f"{file}:longer").num_updates == 9
    assert load_recipe(f"{file}:longer", ["num_updates=3", "name=c"]).num_updates == 3


def test_an_absolute_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = file.parent / "with:colon"
    folder.mkdir()
    file.rename(folder / "good.py")
    monkeypatch.chdir(file.parent)
    for name in ("with:colon/good.py", "with:colon/good.py:longer"):
        assert absolute_name(name) == f"{file.parent}/{name}"
        assert load_recipe(absolute_name(name)).name == load_recipe(name).name
    for name in ("package.module:recipe", "none.py", "with:colon"):
        assert absolute_name(name) == name


def test_a_function_of_a_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    file.rename(file.with_name("recipe_of_a_module.py"))
    assert load_recipe("recipe_of_a_module:longer").name == "b"
    sys.modules.pop("recipe_of_a_module")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("{folder}/none.py", ["there is no recipe {folder}/none.py"]),
        ("{folder}", ["there is no recipe"]),
        ("plain_name", ["there is no recipe 'plain_name'"]),
        ("", ["there is no recipe"]),
        ("no_such_module:recipe", ["cannot import 'no_such_module'"]),
        (":recipe", ["there is no recipe ':recipe'"]),
        ("json:recipe", ["no attribute 'recipe'"]),
        ("{file}:short", ["{file} has no function 'short'"]),
        ("{file}:constant", ["{file}:constant is 3, not a function"]),
        ("{file}:wrong_type", ["returned {{'name': 'a'}}, not a Run"]),
        ("{file}:with_arguments", ["needs the option size"]),
    ],
)
def test_what_is_wrong_is_named(file: Path, name: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(name.format(file=file, folder=file.parent))
    for part in parts:
        assert part.format(file=file, folder=file.parent) in str(caught.value), str(caught.value)


def test_a_slip_of_syntax_is_one_sentence_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "slip.py"
    path.write_text("x = 1\ndef recipe(:\n    pass\n")
    for _ in range(2):  # the second try must not find half a module
        with pytest.raises(UserError, match=rf"^{path}, line 2 is not Python: .*$"):
            load_recipe(str(path))


def test_what_a_recipe_raises_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import there_is_no_such_module\n")
    for _ in range(2):  # the second try must not find half a module
        with pytest.raises(UserError, match=r"broken\.py, line 1 \(`import .*`\): ModuleNotFoundError: No module"):
            load_recipe(str(path))


def test_a_wrong_value_of_a_recipe_is_found(file: Path) -> None:
    with pytest.raises(UserError, match="num_updates is 0"):
        load_recipe(str(file), ["num_updates=0"])
