"""Extras of the package: their modules, and the errors for those that are not installed."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from megatron_sspo.cli import extras
from megatron_sspo.errors import UserError

ROOT = Path(__file__).parents[2]
# where the name of a distribution is not that of its module
MODULE = {"megatron-core": "megatron.core", "antlr4-python3-runtime": "antlr4", "reasoning-gym": "reasoning_gym"}
MODULE |= {"math-verify": "math_verify"}


def library(name: str) -> set[str]:
    """Returns the module of a library of packages/, and those that it needs."""
    project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = [re.split(r"[<>=]", word)[0] for word in project["dependencies"]]
    return {f"sspo_{name}", *(MODULE.get(word, word) for word in words)}


def requirements() -> dict[str, set[str]]:
    """Returns the modules of each list of setup.py, and of install_requires."""
    lists: dict[str, list[ast.expr]] = {}
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and isinstance(node.targets[0], ast.Name):
            lists[node.targets[0].id] = node.value.elts
        if isinstance(node, ast.keyword) and node.arg == "install_requires" and isinstance(node.value, ast.List):
            lists["base"] = node.value.elts
    found: dict[str, set[str]] = {}
    for name, elements in lists.items():
        words = [str(element.value) for element in elements if isinstance(element, ast.Constant)]
        names = {re.split(r"[<>=]", word)[0] for word in words}
        found[name] = {MODULE.get(word, word) for word in names}
        starred = [element.value for element in elements if isinstance(element, ast.Starred)]
        found[name] |= {module for of in starred if isinstance(of, ast.Name) for module in found[of.id]}
        calls = [of for of in starred if isinstance(of, ast.Call)]  # map(library, [...])
        found[name] |= {module for call in calls for of in ast.literal_eval(call.args[1]) for module in library(of)}
    return found


def test_the_modules_are_those_of_setup_py() -> None:
    found = requirements()
    assert found["base"] == {"torch"}
    assert found["TRAIN"] == extras.MODULES["train"]
    assert found["SGLANG_CLIENT"] == extras.MODULES["sglang-client"]


PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from megatron_sspo.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("blocked", "arguments", "code", "message"),
    [
        (["megatron.core"], ["train", "x.py"], 2, "megatron-sspo train needs megatron.core, which is not installed: "),
        (["pydantic", "numpy"], ["evaluate", "x"], 2, "megatron-sspo evaluate needs numpy, which is not installed: "),
        (["megatron.core", "isal"], ["serve", "x.py", "--folder=f"], 2, "there is no file x.py"),
        (["aiohttp"], ["serve", "x.py", "--folder=f"], 2, "pip install 'megatron-sspo[sglang-client]'"),
        (["pydantic", "numpy", "torch"], ["new", "mine"], 0, ""),
        (["scipy"], ["train", "x.py"], 2, "there is no file x.py"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, blocked, arguments, code, message) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {blocked}{PROGRAM}", *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr and done.stderr.count("\n") <= 1


def test_a_module_that_only_some_runs_import_is_named_too() -> None:
    error = extras.error_of(ModuleNotFoundError("No module named 'scipy'", name="scipy"))
    assert isinstance(error, UserError)
    assert str(error) == "this command needs scipy, which is not installed: pip install 'megatron-sspo[train]'"
    assert "megatron-sspo[hub]" in str(extras.error_of(ModuleNotFoundError("", name="datasets")))
    assert extras.error_of(ModuleNotFoundError("", name="megatron")) is not None
    assert extras.error_of(ModuleNotFoundError("", name="a_module_of_the_user")) is None
