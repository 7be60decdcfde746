"""Recipes that cannot be loaded: the error is one sentence with the recipe's line and no line of this package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.recipe import load_recipe
from tests.config.recipes import HEAD, sentence, write

RUN = HEAD.partition("def recipe()")[0]

# the code after the imports -> the line's text, and the error
RAISES = {
    "1 / 0": ("1 / 0", "ZeroDivisionError: division by zero"),
    "def recipe():\n    return run(nme='b')": ("return Run(**(usual | fields))", "unexpected keyword argument 'nme'"),
    "def recipe():\n    return run(objective=grpo(eps_low=-1))": (
        "return run(objective=grpo(eps_low=-1))",
        "ValueError: Clip.eps_low is -1, and must be a number of 0 or more and below 1",
    ),
    "def recipe():\n    raise ValueError('x' * 100_000)": (
        "raise ValueError('x' * 100_000)",
        f"ValueError: {'x' * 997}...",
    ),
    "import sys\nsys.exit('no')": ("sys.exit('no')", "sys.exit('no'): a recipe or plug-in must return instead"),
    "def recipe():\n    import json\n    json.loads('{')": ("json.loads('{')", "JSONDecodeError"),
}

# a file's end, or a whole file -> the message
NO_RUN: dict[str | bytes, str] = {
    "def recipe(): pass": "returned None, not a Run: write `return Run(...)`",
    "recipe = 3": "is 3, and must be a function",
    "def recipe(size): return run()": "needs the option size",
    "def recipie(): return run()": "has no attribute 'recipe'",
    b"x = 1\ndef recipe(:\n    pass\n": "recipe.py, line 2 is not Python: invalid syntax (`def recipe(:`)",
    b"x = 1\0\n": "null bytes",
}


@pytest.mark.parametrize(("lines", "expected"), RAISES.items(), ids=RAISES)
def test_an_error_has_the_recipes_own_line(tmp_path, lines, expected) -> None:
    text, error = expected
    path = tmp_path / "recipe.py"
    path.write_text(RUN + lines + "\n")
    number = [line.strip() for line in path.read_text().splitlines()].index(text) + 1
    for _ in range(2):  # the second try must not find half a module
        with pytest.raises(UserError) as caught:
            load_recipe(str(path))
        assert f"{path}, line {number} (`{text}`)" in str(caught.value) and error in str(caught.value)


@pytest.mark.parametrize(("content", "message"), NO_RUN.items(), ids=map(ascii, NO_RUN))
def test_a_file_without_a_recipe_of_a_run(tmp_path, content, message) -> None:
    path = tmp_path / "recipe.py"
    path.write_bytes(content if isinstance(content, bytes) else (RUN + content + "\n").encode())
    with pytest.raises(UserError) as caught:
        load_recipe(str(path))
    assert message in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.py", "{folder}/none.py"),
        ("folder", "there is no recipe "),
        ("recipe.py:short", "has no attribute 'short'"),
        ("recipe.py:__name__", "and must be a function"),
    ],
)
def test_a_name_of_no_recipe(tmp_path, name, message) -> None:
    write(tmp_path, "")
    with pytest.raises(UserError) as caught:
        load_recipe(f"{tmp_path}/{name}")
    assert message.format(folder=tmp_path) in str(caught.value)


def test_errors_in_files_beside_the_recipe_have_both_lines(tmp_path, capsys) -> None:
    (tmp_path / "a_file_beside.py").write_text("def size():\n    return 1 / 0\n")
    (tmp_path / "a_slip_beside.py").write_text("x = 1\nx = = 2\n")
    path = write(tmp_path, "num_updates=__import__('a_file_beside').size()")
    found = sentence(path, capsys)
    assert f"{path}, line " in found
    assert f"{tmp_path}/a_file_beside.py, line 2 (`return 1 / 0`): ZeroDivisionError" in found
    path = write(tmp_path / "..", "num_updates=__import__('a_slip_beside').x")
    with pytest.raises(UserError, match=r"a_slip_beside.py, line 2 is not Python: invalid syntax \(`x = = 2`\)"):
        load_recipe(str(path))


def test_recipes_of_one_name_in_two_folders_and_of_another_encoding(tmp_path) -> None:
    for number, name in enumerate(("a_b/c", "a/b_c"), start=1):
        (tmp_path / name).mkdir(parents=True)
        path = write(tmp_path / name, f"num_updates={number}, name='größe'")
        path.write_bytes(("# -*- coding: latin-1 -*-\n" + path.read_text()).encode("latin-1"))
        run = load_recipe(str(path))
        assert (run.num_updates, run.name) == (number, "größe")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{folder}/recipe.py", "recipes.recipe:recipe"])
def test_a_recipe_and_a_plug_in_import_the_files_beside_them(tmp_path, form) -> None:
    """The commands run in their own processes, as installed and by -m; Python's own modules are not replaced."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    recipe = write(folder, "name=beside.NAME, reward='my_reward.py:reward' if False else 'my_reward:reward'")
    importing = "from recipes import beside" if form.startswith("recipes") else "import beside"
    recipe.write_text(f"{importing}\n{recipe.read_text()}")
    (folder / "beside.py").write_text("import random\nNAME = 'a' if hasattr(random, 'Random') else 'shadowed'\n")
    (folder / "random.py").write_text("raise SystemExit('a file of the recipe stands in for a module of Python')\n")
    (folder / "my_reward.py").write_text("def reward(): ...\n")
    program = "import sys; from megatron_sspo.recipe import load_recipe\nprint(load_recipe(sys.argv[1]).name)\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, form.format(folder=folder)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("a\n", 0), done.stderr
