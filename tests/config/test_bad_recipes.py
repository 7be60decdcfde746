"""Recipes that cannot be loaded: the error is one sentence with the recipe's line and no line of this package."""

import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from megatron_sspo.config import resolve
from megatron_sspo.errors import UserError
from megatron_sspo.recipe import load_recipe
from tests.config.recipes import HEAD, sentence, write

RUN = HEAD.partition("def recipe()")[0]
IN_RECIPE = "line {line} (`{text}`): "

# the code after the imports -> the line's text, and the error
RAISES = {
    "1 / 0": ("1 / 0", "ZeroDivisionError: division by zero"),
    "import there_is_none": ("import there_is_none", "ModuleNotFoundError: No module named 'there_is_none'"),
    "from math import nothing": ("from math import nothing", "ImportError: cannot import name 'nothing'"),
    "from . import beside": ("from . import beside", "ImportError: attempted relative import"),
    "def recipe():\n    return run(nme='b')": ("return Run(**(usual | fields))", "unexpected keyword argument 'nme'"),
    "def recipe():\n    return Run(name='b')": ("return Run(name='b')", "TypeError: Run.__init__() missing"),
    "def recipe():\n    return run(objective=grpo(eps_low=-1))": (
        "return run(objective=grpo(eps_low=-1))",
        "ValueError: Clip.eps_low is -1, and must be a number of 0 or more and below 1",
    ),
    "def recipe():\n    return run(objective=sspo(SigLog(math.nan, 1)))": (
        "return run(objective=sspo(SigLog(math.nan, 1)))",
        "ValueError: SigLog.tau_neg is nan, and must be a number from 1e-12 to 1e12",
    ),
    "def recipe():\n    return run(objective=sspo(SigLog('a')))": (
        "return run(objective=sspo(SigLog('a')))",
        "ValueError: SigLog.tau_neg is 'a', and must be a number from 1e-12 to 1e12",
    ),
    "def recipe():\n    return run(objective=sspo(AtanLog))": (
        "return run(objective=sspo(AtanLog))",
        "ValueError: SequenceObjective.token_gate is the class AtanLog, and must be a gate, such as AtanLog()",
    ),
    "def recipe():\n    return run(objective=SequenceObjective(AtanLog(), 'geometric'))": (
        "return run(objective=SequenceObjective(AtanLog(), 'geometric'))",
        "ValueError: pool is 'geometric', and must be a function, such as geometric",
    ),
    "def recipe():\n    return run(penalties=Penalties(kl_coef=True))": (
        "return run(penalties=Penalties(kl_coef=True))",
        "ValueError: Penalties.kl_coef is True, and must be a finite number of 0 or more",
    ),
    "def recipe():\n    return run(penalties=Penalties(kl_estimator=['k3']))": (
        "return run(penalties=Penalties(kl_estimator=['k3']))",
        "ValueError: Penalties.kl_estimator is ['k3'], and must be one of k2, k3",
    ),
    "def recipe():\n    return run(correction=Correction(cap='2'))": (
        "return run(correction=Correction(cap='2'))",
        "ValueError: Correction.cap is '2', and must be a finite number",
    ),
    "def recipe():\n    raise RuntimeError('two\\nlines')": (
        "raise RuntimeError('two\\nlines')",
        "RuntimeError: two lines",
    ),
    "def recipe():\n    raise ValueError('x' * 100_000)": (
        "raise ValueError('x' * 100_000)",
        f"ValueError: {'x' * 997}...",
    ),
    "def recipe():\n    raise KeyError": ("raise KeyError", "KeyError"),
    "def recipe():\n    assert 1 > 2": ("assert 1 > 2", "AssertionError"),
    "def recipe():\n    recipe()": ("recipe()", "RecursionError"),
    "import sys\nsys.exit('no')": ("sys.exit('no')", "sys.exit('no'): a recipe or plug-in must return instead"),
    "def recipe():\n    raise SystemExit": ("raise SystemExit", "sys.exit(None)"),
    "class Odd(BaseException):\n    def __str__(self): raise ValueError\nraise Odd": ("raise Odd", "Odd"),
    "def recipe():\n    import json\n    json.loads('{')": ("json.loads('{')", "JSONDecodeError"),
    "def recipe():\n    eval('1 +')": ("eval('1 +')", "SyntaxError: invalid syntax"),
}

# a recipe's last lines -> the message
RETURNS = {
    "def recipe(): pass": "returned None, not a Run: end it with `return Run(...)`",
    "def recipe(): return (run(),)": "not a Run: return one Run, and write a function for each",
    "def recipe(): return [run(), run()]": "not a Run: return one Run, and write a function for each",
    "def recipe(): return {'name': 'a'}": "returned {'name': 'a'}, not a Run: write `return Run(...)`",
    "def recipe(): return Run": "returned the class Run, not a Run: write `return Run(...)`",
    "async def recipe(): return run()": "returned a coroutine, not a Run: write `def`, without async",
    "def recipe(): yield run()": "returned a generator, not a Run: write return instead of yield",
    "async def recipe(): yield run()": "returned a async generator, not a Run: write return instead of yield",
    "class recipe: pass": "not a Run: write `return Run(...)`",
    "def recipe(): return types.SimpleNamespace(name='a')": "returned namespace(name='a'), not a Run",
    "@dataclass\nclass Other:\n    name: str\n\ndef recipe(): return Other('a')": "import Run from megatron_sspo.run",
    "recipe = run()": "is Run(name='a'",
    "recipe = None": "is None, not a function: write `def recipe() -> Run`",
    "recipe = 3": "is 3, not a function: write `def recipe() -> Run`",
    "def recipe(size): return run()": "needs the option size",
    "def recipe(*, size): return run()": "needs the option size",
    "def recipe(size, /): return run()": "needs the option size",
    "def recipie(): return run()": "has no function 'recipe': a recipe file defines `def recipe() -> Run`",
}

# a file's bytes -> the message
CONTENTS = {
    b"": "recipe.py has no function 'recipe'",
    b"x = 1\ndef recipe(:\n    pass\n": "recipe.py, line 2 is not Python: invalid syntax (`def recipe(:`)",
    b"def recipe():\nreturn 1\n": "recipe.py, line 2 is not Python: expected an indented block",
    b"def recipe():\n\tx = 1\n        return x\n": "recipe.py, line 3 is not Python: ",
    b"x = '\xe9'\n": "recipe.py, line 1 is not Python: (unicode error) 'utf-8' codec can't decode",
    b"x = 1\0\n": "recipe.py is not Python: source code string cannot contain null bytes",
    b"\x7fELF\x02\x01\x01\0\0\0\xff\xfe": "is not Python: ",
    b"\xff\xfed\0e\0f\0": "is not Python: ",
    b"# -*- coding: nonsense -*-\n": "recipe.py is not Python: unknown encoding",
    b"(" * 100_000: "is not Python: ",
    b"-" * 1_000_000 + b"1": "is not Python: ",
}


@pytest.mark.parametrize(("lines", "expected"), RAISES.items(), ids=RAISES)
def test_an_error_has_the_recipes_own_line(tmp_path, capsys, lines, expected) -> None:
    text, error = expected
    path = tmp_path / "recipe.py"
    path.write_text(RUN + lines + "\n")
    found = sentence(path, capsys)
    assert found.startswith(f"{path}, line ") and f"(`{text}`): " in found and error in found, found
    number = (
        path.read_text().splitlines().index(next(x for x in path.read_text().splitlines() if x.strip() == text)) + 1
    )
    assert f"{path}, line {number} (`{text}`)" in found


@pytest.mark.parametrize(("lines", "message"), RETURNS.items(), ids=RETURNS)
def test_a_recipe_that_returns_no_run(tmp_path, capsys, recwarn, lines, message) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(RUN + lines + "\n")
    assert message in sentence(path, capsys)
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


@pytest.mark.parametrize(("content", "message"), CONTENTS.items(), ids=[ascii(content[:20]) for content in CONTENTS])
def test_a_file_that_is_no_recipe(tmp_path, capsys, content, message) -> None:
    path = tmp_path / "recipe.py"
    path.write_bytes(content)
    assert message in sentence(path, capsys)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.py", "there is no recipe {folder}/none.py"),
        ("folder.py", "there is no recipe {folder}/folder.py"),
        ("folder", "there is no recipe "),
        ("recipe.txt", "there is no recipe "),
        ("recipe.py:", "there is no recipe "),
        ("recipe.py:short", "has no function 'short'"),
        ("recipe.py:__name__", "is '_megatron_sspo_file_recipe_"),
        ("x" * 5000 + ".py", "there is no recipe "),
        ("a\0b.py", "there is no recipe "),
        ("a\nb.py", "there is no recipe "),
    ],
)
def test_a_name_of_no_recipe(tmp_path, name, message) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "recipe.txt").write_text("")
    write(tmp_path, "")
    with pytest.raises(UserError) as caught:
        load_recipe(f"{tmp_path}/{name}")
    assert message.format(folder=tmp_path) in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch) -> None:
    path = write(tmp_path, "")

    def refused(path: Path) -> BinaryIO:  # as for a user other than root
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(resolve, "open_file", refused)
    with pytest.raises(UserError, match=r"recipe.py is not a Python file that can be read \(Permission denied\)"):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "it is a pipe, not a regular file"),
        (Path.mkdir, "it is a folder, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_a_plug_in_that_is_no_file(tmp_path, make, reason) -> None:
    path = tmp_path / "own.py"
    make(path)
    with pytest.raises(UserError, match=rf"own\.py is not a Python file that can be read \({reason}\)"):
        resolve.resolve("reward", f"{path}:reward", "reward")


def test_an_error_in_a_file_beside_the_recipe_has_both_lines(tmp_path, capsys) -> None:
    (tmp_path / "a_file_beside.py").write_text("def size():\n    return 1 / 0\n")
    path = write(tmp_path, "num_updates=__import__('a_file_beside').size()")
    found = sentence(path, capsys)
    assert f"{path}, line " in found
    assert f"{tmp_path}/a_file_beside.py, line 2 (`return 1 / 0`): ZeroDivisionError" in found


def test_a_slip_of_syntax_in_a_file_beside_the_recipe(tmp_path, capsys) -> None:
    (tmp_path / "a_slip_beside.py").write_text("x = 1\nx = = 2\n")
    path = write(tmp_path, "num_updates=__import__('a_slip_beside').x")
    assert sentence(path, capsys) == f"{tmp_path}/a_slip_beside.py, line 2 is not Python: invalid syntax (`x = = 2`)"


def test_a_recipe_of_an_unusual_encoding_is_read(tmp_path) -> None:
    path = write(tmp_path, "name='größe'")
    text = path.read_text()
    for content in (text.encode("utf-8-sig"), ("# -*- coding: latin-1 -*-\n" + text).encode("latin-1")):
        folder = tmp_path / str(len(content))
        folder.mkdir()
        (folder / "recipe.py").write_bytes(content)
        assert load_recipe(str(folder / "recipe.py")).name == "größe"


def test_recipes_of_one_name_in_two_folders(tmp_path) -> None:
    names = ("a_b/c", "a/b_c")
    for number, name in enumerate(names, start=1):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name, f"num_updates={number}")
    assert [load_recipe(str(tmp_path / name / "recipe.py")).num_updates for name in names] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{folder}/recipe.py", "recipes.recipe:recipe", "recipe:recipe"])
def test_a_recipe_and_a_plug_in_import_the_files_beside_them(tmp_path, form) -> None:
    """The commands run in their own processes, as installed and by -m; Python's own modules are not replaced."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    write(folder, "name=beside.NAME, reward='my_reward.py:reward' if False else 'my_reward:reward'")
    recipe = folder / "recipe.py"
    importing = "from recipes import beside" if form.startswith("recipes") else "import beside"
    recipe.write_text(recipe.read_text().replace("import decimal", f"{importing}\nimport decimal"))
    (folder / "beside.py").write_text("import random\nNAME = 'a' if hasattr(random, 'Random') else 'shadowed'\n")
    (folder / "random.py").write_text("raise SystemExit('a file of the recipe stands in for a module of Python')\n")
    (folder / "my_reward.py").write_text("def reward(): ...\n")
    program = "import sys; from megatron_sspo.recipe import load_recipe\nprint(load_recipe(sys.argv[1]).name)\n"
    place = tmp_path if form.startswith("recipes") else folder
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, form.format(folder=folder)],
        cwd=tmp_path if "{" in form else place,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("a\n", 0), done.stderr
