"""Finds the Python object that a name in the configuration stands for."""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.process_state import process_state_kept
from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.config.validate import HintMismatch, convert_to_hint
from megatron_sspo.errors import UserError

FILE_MODULE = "_megatron_sspo_file_"  # the prefix of the names of modules that are loaded by path

_PACKAGE = Path(__file__).parents[1]


def resolve(folder: str, name: str, attribute: str) -> Any:
    """Returns `attribute` of `megatron_sspo/<folder>/<name>.py`, or the object at the place that the name gives.

    All plug-ins use this one rule, so that adding a plug-in is adding a file.

    Args:
        name: a short name, the name of a file of the folder; or `package.module:attribute` or `file.py:attribute`.
    """
    if ":" in name:
        module_name, _, attribute = name.rpartition(":")
        return _attribute(_import_by_path(module_name), attribute, name)
    if not name.isidentifier() or not (_PACKAGE / folder / f"{name}.py").exists():
        noun = folder.rpartition("/")[2].removesuffix("s")  # "rollout/engines": an engine
        example = f"{name if name.endswith('.py') else 'file.py'}:{attribute}"
        raise UserError(
            f"there is no {noun} named {name!r}: choose one of {', '.join(short_names(folder, attribute))}, "
            f"or name your own as {example} or package.module:{attribute}"
        )
    module = importlib.import_module(f"megatron_sspo.{folder.replace('/', '.')}.{name}")
    return _attribute(module, attribute, name)


def short_names(folder: str, attribute: str) -> list[str]:
    """Returns the names of the files of `megatron_sspo/<folder>` that define `attribute` at the top level."""
    definitions = (f"def {attribute}(", f"class {attribute}(", f"class {attribute}:", f"{attribute} =", f"{attribute}:")
    return sorted(
        path.stem
        for path in (_PACKAGE / folder).glob("*.py")
        if any(line.startswith(definitions) for line in path.read_text(encoding="utf-8").splitlines())
    )


def check_plugin(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """Returns the function that builds a plug-in of the folder `megatron_sspo/<kind>`; checks its options."""
    function = resolve(kind, name, kind)
    check_options(function, options, f"the {kind} {name!r}")
    return function


def call_with_options(function: Callable[..., Any], options: Mapping[str, Any], what: str, *given: Any) -> Any:
    """Returns `function(*given, **options)`, with the options as `check_options` returns them."""
    converted = check_options(function, options, what, num_given=len(given))
    with process_state_kept(what), user_code_errors(what):
        return function(*given, **converted)


def check_options(
    function: Callable[..., Any], options: Mapping[str, Any], what: str, *, num_given: int = 0
) -> dict[str, Any]:
    """Compares the options that a user wrote with the parameters of the function that receives them.

    The function's module may define `check_values(**options)`, which is called last.

    Args:
        what: the owner of the options, for the message: "the source 'jsonl'".
        num_given: the number of leading positional arguments that the caller adds; they are not options.

    Returns:
        The options by name. A value whose JSON stands for another type has the type of the parameter's annotation: a
        tuple or set for a list, a Path or a member of an enumeration for text, a dataclass for a dict.

    Raises:
        UserError: the function does not have an option, an option without a default is missing, or a value does not
            fit the parameter's annotation, or `check_values` refuses it.
    """
    if not callable(function):
        raise UserError(f"{what} is {describe_value(function)}, and must be a function")
    parameters = list(_signature(function).parameters.values())[num_given:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_name = {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    unknown = [f"has no option {name}" for name in options if name not in by_name and not open_ended]
    missing = [
        f"needs the option {name}" for name, p in by_name.items() if p.default is p.empty and name not in options
    ]
    if faults := unknown + missing:
        its_options = f"its options are {', '.join(by_name)}" if by_name else "it has no options"
        raise UserError(f"{what} {faults[0]}: {its_options}, and it is called with nothing else")
    converted = {}
    for name, value in options.items():
        hint = by_name[name].annotation if name in by_name else Any
        try:
            converted[name] = convert_to_hint(value, Any if hint is inspect.Parameter.empty else hint)
        except HintMismatch as error:
            raise UserError(f"{what}: the option {name} is {describe_value(value)}: {error}") from None
    check = getattr(inspect.getmodule(function), "check_values", None)
    if check is not None:
        with user_code_errors(what):
            if open_ended or _shares_options(check, by_name):  # otherwise it is another plug-in's in the same file
                check(**converted)
    return converted


def _shares_options(check: Callable[..., Any], names: Mapping[str, Any]) -> bool:
    """Returns whether a function takes an option of one of these names, or any, or none at all."""
    parameters = inspect.signature(check).parameters.values()
    return not parameters or any(one.kind is one.VAR_KEYWORD or one.name in names for one in parameters)


def check_members(value: Any, interface: type, what: str) -> None:
    """Checks that the object that a user's own function built has the members of its interface, a protocol.

    No method may be async, unless it is in the interface, or have a yield, because a call would not run it.
    """
    methods = [name for name, part in vars(interface).items() if inspect.isfunction(part) and name[0] != "_"]
    names = [*interface.__annotations__, *methods]
    if missing := [name for name in names if not hasattr(value, name)]:
        raise UserError(
            f"{what} is built as {describe_value(value)}, which has no {' and no '.join(missing)}: let it return an "
            f"object with {', '.join(names)}"
        )
    run_later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction)
    plain = [name for name in methods if not inspect.iscoroutinefunction(getattr(interface, name))]
    if later := [name for name in plain if any(is_kind(getattr(value, name)) for is_kind in run_later)]:
        raise UserError(f"{what} has the method {later[0]}, which is async or has a yield: let it be a plain function")


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError):  # annotations that only a type checker can read
        return inspect.signature(function)


def load_file(path: Path) -> Any:
    """Imports a Python file by its path, once per process.

    The file may import other files of its folder: the folder stays on the Python path, at the end, so that a
    `random.py` there does not replace Python's own.
    """
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    name = f"{FILE_MODULE}{path.stem}_{digest}"  # files of the same name get different ones
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UserError(f"there is no file {path}: name a Python file, or package.module:attribute")
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    _add_to_path(path.resolve().parent)
    try:
        with process_state_kept(f"the file {path}"), user_code_errors(f"the file {path}", always=True):
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_by_path(module_name: str) -> Any:
    if module_name.endswith(".py"):
        return load_file(Path(module_name))
    _add_to_path(Path.cwd())  # `python -m megatron_sspo` has it on the path, `megatron-sspo` does not
    try:
        with process_state_kept(f"the module {module_name}"), user_code_errors(f"the module {module_name}"):
            return importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:  # ValueError: an empty name; TypeError: a relative one
        raise UserError(f"cannot import {module_name!r}: {error}; is it on the Python path?") from error


def _attribute(module: Any, attribute: str, name: str) -> Any:
    if not hasattr(module, attribute):
        place = module.__file__ if module.__name__.startswith(FILE_MODULE) else module.__name__
        raise UserError(f"{name!r} resolves to {place}, which has no attribute {attribute!r}")
    return getattr(module, attribute)
