"""From a name in the configuration to the Python object that it stands for."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from megatron_sspo.errors import UserError

_PACKAGE = Path(__file__).parent


def resolve(folder: str, name: str, attribute: str) -> Any:
    """Finds `attribute` of `megatron_sspo/<folder>/<name>.py`; `package.module:attribute` names anything else.

    One rule for every part that can be swapped, so that adding one is adding a file. `file.py:attribute` does too.

    Raises:
        UserError: no such file, module or attribute. The message lists the short names that exist.
    """
    if ":" in name:
        module_name, _, attribute = name.rpartition(":")
        return _attribute(_import_by_path(module_name), attribute, name)
    if not name.isidentifier() or not (_PACKAGE / folder / f"{name}.py").exists():
        raise UserError(
            f"there is no {folder} named {name!r}: choose one of {', '.join(short_names(folder, attribute))}, "
            "or name your own as package.module:attribute"
        )
    module = importlib.import_module(f"megatron_sspo.{folder.replace('/', '.')}.{name}")
    return _attribute(module, attribute, name)


def short_names(folder: str, attribute: str) -> list[str]:
    """The files of `megatron_sspo/<folder>` that define `attribute` at the top level."""
    definitions = (f"def {attribute}(", f"class {attribute}(", f"class {attribute}:", f"{attribute} =", f"{attribute}:")
    return sorted(
        path.stem
        for path in (_PACKAGE / folder).glob("*.py")
        if any(line.startswith(definitions) for line in path.read_text().splitlines())
    )


def call_with_options(function: Callable[..., Any], options: Mapping[str, Any], what: str, *given: Any) -> Any:
    """`function(*given, **options)`, after `check_options`."""
    check_options(function, options, what, num_given=len(given))
    return function(*given, **options)


def check_options(function: Callable[..., Any], options: Mapping[str, Any], what: str, *, num_given: int = 0) -> None:
    """Compares the options that a user wrote with the parameters of the function that gets them.

    Args:
        what: whose options they are, for the message: "the source 'jsonl'".
        num_given: positional arguments that the caller adds by itself; they are no options.

    Raises:
        UserError: an option that the function does not have, or none where it has no default, or a value that is not
            of the parameter's type, where that is a plain one.
    """
    parameters = list(inspect.signature(function).parameters.values())[num_given:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    its_options = f"its options are {', '.join(named)}" if named else "it has none"
    unknown = [name for name in options if name not in named and not open_ended]
    if unknown:
        raise UserError(f"{what} has no option {', '.join(unknown)}: {its_options}")
    missing = [name for name, p in named.items() if p.default is p.empty and name not in options]
    if missing:
        raise UserError(f"{what} needs the option {', '.join(missing)}: {its_options}")
    for name, value in options.items():
        if name in named and not _fits(value, hint := named[name].annotation):
            raise UserError(f"{what} takes for {name} a value of the type {_named(hint)}, and {value!r} is none")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value that JSON can write may be given for an annotated parameter. True where that is not known."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if hint in (None, NoneType):
        return value is None
    plain = {int: (int,), float: (int, float), str: (str,), bool: (bool,), Path: (str, Path)}.get(hint)
    if plain is not None:
        return isinstance(value, plain) and (hint is bool or not isinstance(value, bool))
    if origin is Mapping or origin is dict:
        return isinstance(value, Mapping)
    if origin in (Sequence, list, tuple):
        return isinstance(value, (list, tuple)) and all(_fits(item, arguments[0]) for item in value)
    return True


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "").replace("collections.abc.", "")


def load_file(path: Path) -> Any:
    """Imports a Python file by its path, once a process. What the file itself raises is its author's to see.

    Raises:
        UserError: there is no such file, or it is not Python.
    """
    name = "_megatron_sspo_file_" + "_".join(path.resolve().with_suffix("").parts[1:])
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{path} is not a Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise _not_python(error) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_by_path(module_name: str) -> Any:
    if module_name.endswith(".py"):
        return load_file(Path(module_name))
    try:
        return importlib.import_module(module_name)
    except SyntaxError as error:
        raise _not_python(error) from error
    except (ImportError, ValueError) as error:  # ValueError: an empty name
        raise UserError(f"cannot import {module_name!r}: {error}; is it on the Python path?") from error


def _not_python(error: SyntaxError) -> UserError:
    return UserError(f"{error.filename}, line {error.lineno} is not Python: {error.msg}")


def _attribute(module: Any, attribute: str, name: str) -> Any:
    if not hasattr(module, attribute):
        raise UserError(f"{name!r} resolves to {module.__name__}, which has no attribute {attribute!r}")
    return getattr(module, attribute)
