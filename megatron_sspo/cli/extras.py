"""The optional packages: the modules that a command needs, and the extra of `megatron-sspo` that installs each."""

import importlib.util

from megatron_sspo.errors import UserError

_SGLANG_CLIENT = {"numpy", "pydantic", "transformers", "safetensors", "rich", "aiohttp"}
# The modules of each extra. `check_installed` looks for the modules that every run uses.
MODULES = {
    "sglang-client": _SGLANG_CLIENT,
    "train": {
        *_SGLANG_CLIENT,
        "megatron.core",
        "psutil",
        "tokenizers",
        "isal",
        "pyarrow",
        "sspo_answers",
        "sspo_sandbox",
        "math_verify",
        "mpmath",
        "antlr4",
        "reasoning_gym",
        "matplotlib",
        "scipy",
    },
    "hub": {"datasets"},
}
# modules that only some runs need: those with one source, reward or table
_OPTIONAL_MODULES = {"pyarrow", "math_verify", "mpmath", "antlr4", "reasoning_gym", "scipy"}


def check_installed(command: str, extra: str) -> None:
    """Checks that the modules that a command always needs are installed, without importing them.

    Raises:
        UserError: a module is missing; the message has the command of pip that installs it.
    """
    missing = [name for name in sorted(MODULES[extra] - _OPTIONAL_MODULES) if not _is_installed(name)]
    if missing:
        raise _missing(f"megatron-sspo {command}", missing[0], extra)


def error_of(error: ModuleNotFoundError) -> UserError | None:
    """Returns the error for a module of an extra that was not found; None for any other module."""
    for extra in ("train", "hub"):
        if any(_is_within(error.name or "", module) for module in MODULES[extra]):
            return _missing("this command", error.name or "", extra)
    return None


def _missing(what: str, module: str, extra: str) -> UserError:
    return UserError(f"{what} needs {module}, which is not installed: pip install 'megatron-sspo[{extra}]'")


def _is_within(name: str, module: str) -> bool:
    """Returns whether a name is the name of the module or of a package that contains it, such as megatron."""
    return name == module or module.startswith(f"{name}.")


def _is_installed(name: str) -> bool:
    """Returns whether a module can be imported. A folder of that name without an __init__.py does not count."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # of the package that contains it
        return False
    return spec is not None and spec.origin is not None
