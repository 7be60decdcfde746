"""Loads a recipe by its name and returns its `Run`."""

from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.config.naming import describe_value, shorten
from megatron_sspo.config.overrides import override
from megatron_sspo.config.process_state import process_state_kept
from megatron_sspo.config.resolve import check_options, resolve
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.run import Run, check


def load_recipe(name: str, assignments: Sequence[str] = ()) -> Run:
    """Calls the recipe, applies the overrides, and checks every value of the result.

    Args:
        name: `file.py` (its function `recipe`), `file.py:function`, or `package.module:function`.
        assignments: overrides `field.field=value`, applied from left to right.

    Raises:
        UserError: the recipe does not exist, raises, or does not return a Run, or a value is wrong.
    """
    path, function = _split(name)
    if not path or not function:
        raise UserError(
            f"there is no recipe {shorten(name)!r}: name a Python file, file.py:function or package.module:function"
        )
    what = f"the recipe {name}"
    recipe = resolve("", f"{path}:{function}", "")
    check_options(recipe, {}, what)
    with process_state_kept(what), user_code_errors(what, always=True):
        run = recipe()
    if not isinstance(run, Run):
        raise UserError(f"{what} returned {describe_value(run)}, not a Run: write `return Run(...)`")
    return check(override(run, assignments))


def absolute_name(name: str) -> str:
    """Returns a recipe's name with the absolute path of its file, for a process with another working folder."""
    path, _ = _split(name)
    return f"{Path(path).absolute()}{name[len(path) :]}" if path.endswith(".py") and Path(path).is_file() else name


def _split(name: str) -> tuple[str, str]:
    """Returns the file or module of a recipe's name, and its function."""
    if name.endswith(".py"):
        return name, "recipe"
    path, _, function = name.rpartition(":")
    return path, function
