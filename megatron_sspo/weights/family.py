"""What a model family is, and how config.json finds its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.resolve import resolve, short_names
from megatron_sspo.weights.table import Row

_FOLDER = "weights/families"

Config = Mapping[str, Any]  # the content of config.json


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is known about the models of one `model_type`: the functions take config.json's content."""

    architectures: tuple[str, ...]  # the classes of Transformers that it stands for
    check: Callable[[Config], None]  # UserError for a field that Megatron would compute otherwise
    transformer_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's TransformerConfig
    model_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's GPTModel; vocab_size is not padded
    rows: Callable[[Config, int], list[Row]]  # (config, padded vocabulary size) -> one row per parameter of the model


def load_family(config: Config, name: str | None = None) -> Family:
    """The family of a model: the file `families/<model_type>.py`, or the one that the user names.

    Args:
        name: a short name or `package.module:attribute`, in place of config.json's `model_type`. Only the user sets
            it: config.json comes from outside and never names a module to import.

    Raises:
        UserError: the architecture is not supported, or the family refuses a field of config.json.
    """
    if name is None:
        name = config.get("model_type")
        if name not in short_names(_FOLDER, "family"):
            raise _unsupported(f"model_type {name!r}")
    family: Family = resolve(_FOLDER, name, "family")
    for architecture in (config.get("architectures") or [])[:1]:
        if architecture not in family.architectures:
            raise _unsupported(f"architecture {architecture!r}")
    family.check(config)
    return family


def size(config: Config, *names: str, default: int | None = None) -> int:
    """A positive integer of config.json, under the first of `names` that is there."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"config.json has {name} {value!r}; it must be a positive integer")
            return value
    if default is None:
        raise UserError(f"config.json has no {' or '.join(names)}; the model cannot be built without it")
    return default


def require(config: Config, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuses a field of config.json that has another value than those listed. An absent field is accepted."""
    for field, allowed in values.items():
        if field in config and config[field] not in allowed:
            raise UserError(
                f"config.json has {field} {config[field]!r}, which is not supported: "
                f"it must be {' or '.join(repr(value) for value in allowed)}"
            )


def _unsupported(what: str) -> UserError:
    supported = {
        model_type: resolve(_FOLDER, model_type, "family").architectures
        for model_type in short_names(_FOLDER, "family")
    }
    listed = ", ".join(f"{name} ({', '.join(architectures)})" for name, architectures in supported.items())
    return UserError(f"{what} of config.json is not supported: the model families are {listed}")
