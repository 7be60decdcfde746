"""The batches of a cycle that are not yet trained on, as flat arrays in one file.

Tokens, log-probs, routes and texts are each concatenated over all rollouts, with their lengths in an array of their
own. The other fields of a rollout and the prompts are JSON, stored as an array of bytes in the same file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from megatron_sspo.arrays.convert import freeze
from megatron_sspo.errors import UserError
from megatron_sspo.files.arrays import read_arrays, write_arrays
from megatron_sspo.types import TOKEN_VALUES, Batch, Prompt, Rollout, RolloutGroup

_JSON_FIELDS = ("finish_reason", "policy_version", "version_spans", "reward_parts", "advantage", "observed", "branches")
_TEXTS = ("text", "transcript")
_ARRAYS = {"tokens": ("int32",), **dict.fromkeys(TOKEN_VALUES, ("float32",)), "routes": ("uint8", "uint16")}
_FLAT = {**_ARRAYS, **dict.fromkeys(_TEXTS, ("uint8",))}  # the possible types of each field
_NONE = -1  # the length of a field that is None


def write_batches(path: Path, batches: Sequence[Batch]) -> None:
    """Writes batches, atomically; every number keeps every bit.

    The prompts' metadata is left out: JSON cannot represent all of it, and only the reward reads it, which is computed.
    """
    rollouts = [rollout for batch in batches for group in batch for rollout in group.rollouts]
    rows = [[_group_row(group) for group in batch] for batch in batches]
    content = json.dumps(rows, default=str).encode()
    arrays: dict[str, np.ndarray] = {"rows": np.frombuffer(content, dtype=np.uint8)}
    for name, kinds in _FLAT.items():
        values = [_as_array(getattr(rollout, name)) for rollout in rollouts]
        arrays[name] = np.concatenate([np.empty(0, kinds[0]), *(array for array in values if array is not None)])
        arrays[f"{name}_lengths"] = np.array([_NONE if a is None else len(a) for a in values], dtype=np.int64)
    write_arrays(path, arrays)


def read_batches(path: Path) -> list[list[RolloutGroup]]:
    """Reverses `write_batches`.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: the file does not have the form that `write_batches` writes.
        OSError: it cannot be read.
    """
    arrays = read_arrays(path)
    rows = json.loads(arrays["rows"].tobytes())
    rollouts = [rollout for batch in rows for group in batch for rollout in group["rollouts"]]
    if set(arrays) != {"rows", *_FLAT, *(f"{name}_lengths" for name in _FLAT)}:
        raise ValueError(f"{path.name} has the arrays {', '.join(sorted(arrays))}")
    fields = {name: _split(arrays, name, len(rollouts)) for name in _FLAT}
    for name in _TEXTS:
        fields[name] = [bytes(values).decode("utf-8", "surrogatepass") for values in fields[name]]
    for number, rollout in enumerate(rollouts):
        rollout |= {name: values[number] for name, values in fields.items()}
    return [[_group_from_row(group) for group in batch] for batch in rows]


def _group_row(group: RolloutGroup) -> dict[str, Any]:
    rollouts = [{name: getattr(rollout, name) for name in _JSON_FIELDS} for rollout in group.rollouts]
    return {"prompt": asdict(replace(group.prompt, metadata={})), "rollouts": rollouts}


def _group_from_row(row: dict[str, Any]) -> RolloutGroup:
    try:
        rollouts = [Rollout(**_tupled(rollout)) for rollout in row["rollouts"]]
    except UserError as error:  # fields that do not belong together
        raise ValueError(str(error)) from error
    return RolloutGroup(prompt=Prompt(**_tupled(row["prompt"])), rollouts=rollouts)


def _as_array(value: np.ndarray | str | None) -> np.ndarray | None:
    if isinstance(value, str):
        return np.frombuffer(value.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    return value


def _split(arrays: Mapping[str, np.ndarray], name: str, count: int) -> list[Any]:
    """Returns a field of each of `count` rollouts, as read-only views of the flat array.

    Raises:
        ValueError: types, numbers of dimensions or lengths are wrong.
    """
    flat, lengths = arrays[name], arrays[f"{name}_lengths"]
    if flat.ndim != 1 or flat.dtype.name not in _FLAT[name]:
        raise ValueError(f"{name} is {flat.dtype} {list(flat.shape)}")
    if lengths.dtype != np.int64 or lengths.shape != (count,) or (lengths < _NONE).any():
        raise ValueError(f"the lengths of {name} are {lengths.dtype} {list(lengths.shape)} for {count} rollouts")
    ends = lengths.clip(min=0).cumsum()
    if len(flat) != (int(ends[-1]) if count else 0):
        raise ValueError(f"{name} has {len(flat)} values, and its lengths are another number")
    freeze(flat)
    return [None if n == _NONE else flat[end - n : end] for n, end in zip(lengths.tolist(), ends.tolist(), strict=True)]


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    def of(value: Any) -> Any:
        return tuple(map(of, value)) if isinstance(value, list) else value

    return {key: of(value) for key, value in values.items()}
