"""The definition of a model family, and the lookup of the family for a config.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.config.resolve import resolve, short_names
from megatron_sspo.errors import UserError, short_repr
from megatron_sspo.weights.table import ParameterMap

_FOLDER = "weights/families"
# The fields with the number of experts. Mixtral has the second one, and so has Qwen3 as Transformers 5 writes it. GLM
# has the third.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# the remedy for quantized weights
DEQUANTIZE = (
    "get the model in bfloat16, or load it by its own config.json with Transformers, call the model's dequantize(), "
    "and save it with save_pretrained"
)

Config = Mapping[str, Any]  # the content of config.json


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """The modules of a layer's experts within Hugging Face's layer, with {e} for the number of an expert.

    Attributes:
        width: the field of config.json with the intermediate size of an expert.
        bias: the tensor that is added to the router's scores to choose experts, and to nothing else; "": none.
        shared: the module of the shared experts; "": none.
        shared_width: the field with their intermediate size; "": `width` times n_shared_experts.
        shared_gate: the module that weights their output by σ(w · x); "": none.
    """

    router: str
    gate: str
    up: str
    down: str
    width: str
    bias: str = ""
    shared: str = ""
    shared_width: str = ""
    shared_gate: str = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything specific to the models of one `model_type`. The functions take the content of config.json."""

    architectures: tuple[str, ...]  # the classes of Transformers that it covers
    check: Callable[[Config], None]  # raises UserError for a field that Megatron would compute differently
    transformer_fields: Callable[[Config], dict[str, Any]]  # arguments of Megatron's TransformerConfig
    # arguments of Megatron's GPTModel; vocab_size is not padded, rotary_frequencies replace those of its embedding, and
    # norm_of_all_heads replaces the norms of each head's queries and keys
    model_fields: Callable[[Config], dict[str, Any]]
    rows: Callable[[Config, int], list[ParameterMap]]  # (config, padded vocabulary size) -> one row per parameter
    expert_names: ExpertNames | None = None  # None: a model without experts


def load_family(config: Config, folder: Path | None = None) -> Family:
    """Loads the family of a model, the file `families/<model_type>.py`.

    Raises UserError if the architecture is not supported, or a field of config.json, which is in `folder`, is refused.
    """
    name, names = config.get("model_type", ""), short_names(_FOLDER, "family")
    architecture = next(iter(config.get("architectures") or ()), None)
    try:
        text = config.get("text_config")
        if isinstance(text, Mapping) and text.get("model_type") in names:
            raise UserError(
                f"config.json is of a model of images and text ({short_repr(name)}): make a folder of its language "
                "model by converting it with megatron-sspo convert to a checkpoint of Megatron and back"
            )
        family: Family | None = resolve(_FOLDER, name, "family") if name in names else None
        if family is None or architecture not in (None, *family.architectures):
            listed = ", ".join(
                f"{each} ({', '.join(resolve(_FOLDER, each, 'family').architectures)})" for each in names
            )
            raise UserError(
                f"model_type {short_repr(name)} with the architecture {short_repr(architecture)} of config.json is not "
                f"supported: the model families are {listed}"
            )
        family.check(config)
        for fields in (family.transformer_fields, family.model_fields):
            fields(config)  # both refuse a value that is not a number where one is needed
        return family
    except UserError as error:
        raise UserError(f"{folder}: {error}" if folder else str(error)) from error


def language_model(config: Config) -> dict[str, Any]:
    """Returns the content of config.json of the language model within a model of images and text."""
    text = config["text_config"]
    return {"architectures": [load_family(text).architectures[0]], **text}


def architecture(config: Config, folder: Path) -> dict[str, Any]:
    """Returns Megatron's arguments for a model, except for the number of positions, which changes no result.

    Raises UserError as `load_family` does.
    """
    family = load_family(config, folder)
    fields = {**family.transformer_fields(config), **family.model_fields(config)}
    return {name: value for name, value in fields.items() if name != "max_sequence_length"}


def size(config: Config, *names: str, default: int | None = None) -> int:
    """Returns a positive integer of config.json; all of the fields `names` mean the same, and one is enough."""
    name = next((name for name in names if config.get(name) is not None), names[0])
    value = default if config.get(name) is None else config[name]
    return _checked(name, value, type(value) is int and value > 0, "a positive integer")


def number(config: Config, name: str, default: float | None = None) -> float:
    """Returns a positive number of config.json, or the default if the field is absent."""
    value = config.get(name, default)
    return _checked(name, value, type(value) in (int, float) and value > 0, "a positive number")


def flag(config: Config, name: str) -> bool:
    """Returns a boolean of config.json; a field that is null or absent is false."""
    return bool(_checked(name, config.get(name), config.get(name) in (None, True, False), "true or false"))


def _checked(name: str, value: Any, is_valid: bool, what: str) -> Any:
    if not is_valid:
        raise UserError(f"config.json has {name} {short_repr(value)}; it must be {what}")
    return value


def require(config: Config, values: Mapping[str, Sequence[Any] | None]) -> None:
    """Refuses a field of config.json whose value is not among those listed, if any are. It may be absent."""
    for field, allowed in values.items():
        if allowed is not None and field in config and config[field] not in allowed:
            raise UserError(
                f"config.json has {field} {short_repr(config[field])}, which is not supported: "
                f"it must be {' or '.join(json.dumps(value) for value in allowed)}"
            )
