"""From the name of a recipe to its `Run`."""

from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.overrides import override
from megatron_sspo.resolve import call_with_options, load_file, resolve
from megatron_sspo.run import Run, check


def load_recipe(name: str, assignments: Sequence[str] = ()) -> Run:
    """Calls the recipe and applies the overrides.

    Args:
        name: `file.py` (its function `recipe`), `file.py:function`, or `package.module:function`.
        assignments: `field.field=value`, from left to right.

    Raises:
        UserError: there is no such recipe, it does not return a Run, or an override is wrong.
    """
    path, _, function = name.partition(":")
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise UserError(
                f"there is no recipe {path}: name a Python file, file.py:function or package.module:function"
            )
        module = load_file(Path(path))
        function = function or "recipe"
        if not hasattr(module, function):
            raise UserError(f"{path} has no function {function!r}: a recipe file defines `def recipe() -> Run`")
        recipe = getattr(module, function)
    elif function:
        recipe = resolve("", name, function)
    else:
        raise UserError(f"there is no recipe {name!r}: name a Python file, file.py:function or package.module:function")
    if not callable(recipe):
        raise UserError(f"the recipe {name} is not a function: write `def {function}() -> Run`")
    run = call_with_options(recipe, {}, f"the recipe {name}")
    if not isinstance(run, Run):
        raise UserError(f"the recipe {name} returned {type(run).__name__}, not a Run")
    return check(override(run, assignments))
