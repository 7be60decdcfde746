"""Finds the Python object that a name in the configuration stands for."""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from megatron_sspo.config.hints import HintMismatch, convert_to_hint
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.process_state import process_state_kept
from megatron_sspo.config.tree import describe_hint
from megatron_sspo.config.user_code import syntax_user_error, user_code_errors
from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import open_file

FILE_MODULE = "_megatron_sspo_file_"  # the prefix of the names of modules that are loaded by path

_PACKAGE = Path(__file__).parents[1]


def resolve(folder: str, name: str, attribute: str) -> Any:
    """Returns `attribute` of `megatron_sspo/<folder>/<name>.py`, or the object at the place that the name gives.

    All plug-ins use this one rule, so that adding a plug-in is adding a file.

    Args:
        name: a short name, the name of a file of the folder; or `package.module:attribute` or `file.py:attribute`.

    Raises:
        UserError: the file, module or attribute does not exist. The message lists the existing short names.
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


def call_with_options(function: Callable[..., Any], options: Mapping[str, Any], what: str, *given: Any) -> Any:
    """Returns `function(*given, **options)`, with the options as `check_options` returns them.

    Raises:
        UserError: `check_options` fails, or the user's own function raises; the message has the line.
    """
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
    signature = _signature(function)
    parameters = list(signature.parameters.values())[num_given:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_name = {p.name: p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    its_options = f"its options are {', '.join(by_name)}" if by_name else "it has no options"
    unknown = [name for name in options if name not in by_name and not open_ended]
    if unknown:
        raise UserError(f"{what} has no option {', '.join(unknown)}: {its_options}")
    missing = [name for name, p in by_name.items() if p.default is p.empty and name not in options]
    if missing:
        built = ", and returns an object with the method score: docs/first_recipe.md#2-a-reward"
        raise UserError(
            f"{what} needs the option {', '.join(missing)}: {its_options}, and it is called with nothing else"
            + built * what.startswith("the reward")
        )
    converted = {}
    for name, value in options.items():
        hint = by_name[name].annotation if name in by_name else Any
        try:
            converted[name] = convert_to_hint(value, Any if hint is inspect.Parameter.empty else hint)
        except HintMismatch:
            given = describe_value(value)
            raise UserError(f"{what}: the option {name} must be {_describe_type(hint)}, but is {given}") from None
    try:
        signature.bind(*[None] * num_given, **options)
    except TypeError as error:
        raise UserError(f"{what} cannot be called with only its options: {error}") from None
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
    """Checks that the object that a user's own function built has the members of its interface.

    Args:
        value: the object.
        interface: a protocol; its methods have to accept the arguments with which it declares them.
        what: the plug-in, for the message: "the reward 'mine.py:reward'".

    Raises:
        UserError: the object lacks a member, one raises when it is looked up, or a method cannot be called as the
            interface does.
    """
    methods = {name: part for name, part in vars(interface).items() if inspect.isfunction(part) and name[0] != "_"}
    names = [*interface.__annotations__, *methods]
    with user_code_errors(what):  # a property, or __getattr__
        members = {name: getattr(value, name) for name in names if hasattr(value, name)}
    missing = [name for name in names if name not in members or (name in methods and not callable(members[name]))]
    if missing:
        raise UserError(
            f"{what} is built as {describe_value(value)}, which has no {' and no '.join(missing)}: let it return an "
            f"object with {', '.join(names)}"
        )
    for name, method in methods.items():
        parameters = list(inspect.signature(method).parameters.values())[1:]
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        given = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        try:
            _signature(members[name]).bind(*given, **dict.fromkeys(keywords))
        except TypeError as error:
            shown = ", ".join(["self", *given, *(["*", *keywords] if keywords else [])])
            raise UserError(
                f"{what} is built as {describe_value(value)}, whose {name} cannot be called as it has to be "
                f"({error}): define it as def {name}({shown})"
            ) from None
        if _runs_later(members[name]):
            raise UserError(
                f"{what} is built as {describe_value(value)}, whose {name} is async or has a yield, so that a call "
                "would not run it: let it be a plain function that returns its result"
            )


def _runs_later(function: Any) -> bool:
    """Returns whether a call only makes a coroutine or a generator."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(function) for is_kind in kinds)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError):  # an annotation uses names that only a type checker imports
        return inspect.signature(function)
    except (TypeError, ValueError):  # a function in C without a signature
        return inspect.signature(lambda *arguments, **options: None)


def _describe_type(hint: Any) -> str:
    if get_origin(hint) in (Annotated, Literal):
        return describe_hint(hint)
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    return f"a value of the type {name.replace('typing.', '').replace('collections.abc.', '')}"


def load_file(path: Path) -> Any:
    """Imports a Python file by its path, once per process.

    The file may import other files of its folder: the folder stays on the Python path, at the end, so that a
    `random.py` there does not replace Python's own.

    Raises:
        UserError: the file does not exist, is not Python, or raises; the message has the line.
    """
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    try:
        with open_file(path) as file:
            code = compile(file.read(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise UserError(f"{path} is not a Python file that can be read ({error.strerror}): name another") from error
    except SyntaxError as error:
        raise syntax_user_error(error, path) from error
    except (ValueError, MemoryError, RecursionError) as error:  # NUL bytes, or code that is nested too deeply
        raise UserError(f"{path} is not Python: {error or type(error).__name__}") from error
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it is None only for a name that does not end in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _add_to_path(path.resolve().parent)
    try:
        with process_state_kept(f"the file {path}"), user_code_errors(f"the file {path}", always=True):
            exec(code, module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(path: Path) -> str:
    """Returns the name in `sys.modules` of a file loaded by its path; files of the same name get different ones."""
    real = os.path.realpath(path)  # unlike Path.resolve, it accepts a circle of links
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    return f"{FILE_MODULE}{path.stem}_{digest}"


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
