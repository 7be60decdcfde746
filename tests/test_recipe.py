"""Loading a recipe by its name."""

import sys
from pathlib import Path

import pytest

from megatron_sspo.recipe import absolute_name, load_recipe

GOOD = """
from megatron_sspo.run import Model, Prompts, Run


def recipe() -> Run:
    return Run(name="a", model=Model(path="m"), prompts=Prompts(source="x.jsonl"), num_updates=1)


def longer() -> Run:
    return Run(name="b", model=Model(path="m"), prompts=Prompts(source="x.jsonl"), num_updates=9)
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
