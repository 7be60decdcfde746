"""From a name in the configuration to the Python object that it stands for."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError

_PACKAGE = Path(__file__).parent


def resolve(folder: str, name: str, attribute: str) -> Any:
    """Finds `attribute` of `megatron_sspo/<folder>/<name>.py`; `package.module:attribute` names anything else.

    One rule for every part that can be swapped, so that adding one is adding a file.

    Raises:
        UserError: no such file, module or attribute. The message lists the short names that exist.
    """
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        return _attribute(_import_by_path(module_name), attribute, name)
    if not (_PACKAGE / folder / f"{name}.py").exists():
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


def load_file(path: Path) -> Any:
    """Imports a Python file by its path, once a process."""
    name = "_megatron_sspo_file_" + "_".join(path.resolve().with_suffix("").parts[1:])
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise UserError(f"{path} is not a Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_by_path(module_name: str) -> Any:
    if module_name.endswith(".py"):
        return load_file(Path(module_name))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {module_name}: {error}; is it on the Python path?") from error


def _attribute(module: Any, attribute: str, name: str) -> Any:
    if not hasattr(module, attribute):
        raise UserError(f"{name!r} resolves to {module.__name__}, which has no attribute {attribute!r}")
    return getattr(module, attribute)
