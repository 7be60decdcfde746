"""Loads a recipe by its name and returns its `Run`."""

import inspect
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.config.naming import describe_value, shorten
from megatron_sspo.config.overrides import override
from megatron_sspo.config.process_state import process_state_kept
from megatron_sspo.config.resolve import check_options, load_file, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.run import Run, check

_FORMS = "name a Python file, file.py:function or package.module:function"


def load_recipe(name: str, assignments: Sequence[str] = ()) -> Run:
    """Calls the recipe, applies the overrides, and checks every value of the result.

    Args:
        name: `file.py` (its function `recipe`), `file.py:function`, or `package.module:function`.
        assignments: overrides `field.field=value`, applied from left to right.

    Raises:
        UserError: the recipe does not exist, raises, or does not return a Run, or a value is wrong.
    """
    what = f"the recipe {name}"
    recipe = _recipe(name)
    if not callable(recipe):
        raise UserError(f"{what} is {describe_value(recipe)}, not a function: write `def recipe() -> Run`")
    check_options(recipe, {}, what)
    with process_state_kept(what), user_code_errors(what, always=True):
        run = recipe()
    if not isinstance(run, Run):
        raise UserError(f"{what} returned {describe_value(run)}, not a Run{_remedy(run)}")
    return check(override(run, assignments))


def absolute_name(name: str) -> str:
    """Returns a recipe's name with the absolute path of its file, for a process with another working folder."""
    path, _ = _split(name)
    return f"{Path(path).absolute()}{name[len(path) :]}" if path.endswith(".py") and _is_file(path) else name


def _split(name: str) -> tuple[str, str]:
    """Returns the file or module of a recipe's name, and its function."""
    if name.endswith(".py"):
        return name, "recipe"
    path, _, function = name.rpartition(":")
    return path, function


def _recipe(name: str) -> Any:
    path, function = _split(name)
    if "\0" in name or not path or not function:
        raise UserError(f"there is no recipe {shorten(name)!r}: {_FORMS}")
    if not path.endswith(".py"):
        return resolve("", name, function)
    if not _is_file(path):
        raise UserError(f"there is no recipe {shorten(path, 300)}: {_FORMS}")
    module = load_file(Path(path))
    if not hasattr(module, function):
        raise UserError(f"{path} has no function {function!r}: a recipe file defines `def recipe() -> Run`")
    return getattr(module, function)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long
        return False


def _remedy(found: Any) -> str:
    if inspect.iscoroutine(found):
        found.close()  # otherwise Python warns that the coroutine was never awaited
        return ": write `def`, without async"
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        return ": write return instead of yield"
    if found is None:
        return ": end it with `return Run(...)`"
    if isinstance(found, (tuple, list)) and any(isinstance(item, Run) for item in found):
        return ": return one Run, and write a function for each"
    if is_dataclass(found) and not isinstance(found, type):
        return ": import Run from megatron_sspo.run"
    return ": write `return Run(...)`"
