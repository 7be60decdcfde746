"""The definition of a model family, and the lookup of the family for a config.json."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.config.resolve import resolve, short_names
from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights.table import ParameterMap

_FOLDER = "weights/families"
_MAX_SIZE = 2**53  # of a size; up to this value floating-point numbers represent integers exactly
# The fields with the number of experts. Mixtral has the second one, and so has Qwen3 as Transformers 5 writes it.
EXPERTS = ("num_experts", "num_local_experts")
# the remedy for quantized weights
DEQUANTIZE = (
    "get the model in bfloat16, or load it by its own config.json with Transformers, call the model's dequantize(), "
    "and save it with save_pretrained"
)

Config = Mapping[str, Any]  # the content of config.json


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """The modules of a layer's experts within Hugging Face's layer, with {e} for the number of an expert."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything specific to the models of one `model_type`. The functions take the content of config.json."""

    architectures: tuple[str, ...]  # the classes of Transformers that it covers
    check: Callable[[Config], None]  # raises UserError for a field that Megatron would compute differently
    transformer_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's TransformerConfig
    model_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's GPTModel; vocab_size is not padded
    rows: Callable[[Config, int], list[ParameterMap]]  # (config, padded vocabulary size) -> one row per parameter
    expert_names: ExpertNames | None = None  # None: a model without experts


def load_family(config: Config, folder: Path | None = None) -> Family:
    """Loads the family of a model, the file `families/<model_type>.py`.

    Args:
        folder: the folder of config.json, for the message.

    Raises:
        UserError: the architecture is not supported, or a field of config.json is refused.
    """
    try:
        return _load_family(config)
    except UserError as error:
        if folder is None:
            raise
        raise UserError(f"{folder}: {error}") from error


def _load_family(config: Config) -> Family:
    name = config.get("model_type")
    if name not in short_names(_FOLDER, "family"):  # config.json comes from outside, and must not name other modules
        raise _unsupported(f"model_type {short_repr(name)}")
    family: Family = resolve(_FOLDER, name, "family")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise UserError(f"config.json has architectures {short_repr(architectures)}; it must be a list of names")
    for architecture in architectures[:1]:
        if architecture not in family.architectures:
            raise _unsupported(f"architecture {short_repr(architecture)}")
    family.check(config)
    for fields in (family.transformer_fields, family.model_fields):
        fields(config)  # both refuse a value that is not a number where one is needed
    return family


def architecture(config: Config, folder: Path) -> dict[str, Any]:
    """Returns Megatron's arguments for a model, except for the number of positions, which changes no result.

    Args:
        folder: the folder of config.json, for the message of an error.

    Raises:
        UserError: see `load_family`.
    """
    family = load_family(config, folder)
    fields = {**family.transformer_fields(config), **family.model_fields(config)}
    return {name: value for name, value in fields.items() if name != "max_sequence_length"}


def size(config: Config, *names: str, default: int | None = None) -> int:
    """Returns a positive integer of config.json; all of the fields `names` mean the same, and one is enough."""
    found = {name: config[name] for name in names if config.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MAX_SIZE:
            raise UserError(
                f"config.json has {name} {short_repr(value)}; it must be a positive integer of less than {_MAX_SIZE:,}"
            )
    if len(set(found.values())) > 1:
        listed = " and ".join(f"{name} {value:,}" for name, value in found.items())
        raise UserError(f"config.json has {listed}, which mean the same; remove the wrong one")
    value = next(iter(found.values()), default)
    if value is None:
        raise UserError(f"config.json has no {' or '.join(names)}; the model cannot be built without it")
    return value


def number(config: Config, name: str, default: float | None = None) -> float:
    """Returns a positive, finite number of config.json, or the default if the field is absent."""
    value = config.get(name, default)
    if value is None and name not in config:
        raise UserError(f"config.json has no {name}; the model cannot be built without it")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise UserError(f"config.json has {name} {short_repr(value)}; it must be a positive, finite number")
    return value


def flag(config: Config, name: str) -> bool:
    """Returns a boolean of config.json; a field that is null or absent is false."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"config.json has {name} {short_repr(value)}; it must be true or false")
    return bool(value)


def require(config: Config, values: Mapping[str, Sequence[Any]]) -> None:
    """Refuses a field of config.json whose value is not among those listed. An absent field is accepted."""
    for field, allowed in values.items():
        if field in config and config[field] not in allowed:
            raise UserError(
                f"config.json has {field} {short_repr(config[field])}, which is not supported: "
                f"it must be {' or '.join(json.dumps(value) for value in allowed)}"
            )


def _unsupported(what: str) -> UserError:
    supported = {
        model_type: resolve(_FOLDER, model_type, "family").architectures
        for model_type in short_names(_FOLDER, "family")
    }
    listed = ", ".join(f"{name} ({', '.join(architectures)})" for name, architectures in supported.items())
    return UserError(f"{what} of config.json is not supported: the model families are {listed}")
