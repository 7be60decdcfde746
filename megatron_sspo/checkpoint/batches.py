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
from megatron_sspo.files.arrays import read_arrays, write_arrays
from megatron_sspo.types import TOKEN_VALUES, Batch, Prompt, Rollout, RolloutGroup

_JSON_FIELDS = ("finish_reason", "policy_version", "version_spans", "reward_parts", "advantage", "observed", "branches")
_TEXTS = ("text", "transcript")
_FLAT = {  # the type of each field; numbers of experts are of the type of the largest
    "tokens": "int32",
    "teacher_top_tokens": "int32",
    "routes": "uint8",
    **dict.fromkeys((*TOKEN_VALUES, "teacher_top_log_probs"), "float32"),
    **dict.fromkeys(_TEXTS, "uint8"),
}
_NONE = -1  # the length of a field that is None


def write_batches(path: Path, batches: Sequence[Batch]) -> None:
    """Writes batches, atomically; every number keeps every bit.

    The prompts' metadata is left out: JSON cannot represent all of it, and only the reward reads it, which is computed.
    """
    rollouts = [rollout for batch in batches for group in batch for rollout in group.rollouts]
    rows = [[_group_row(group) for group in batch] for batch in batches]
    content = json.dumps(rows, default=str).encode()
    arrays: dict[str, np.ndarray] = {"rows": np.frombuffer(content, dtype=np.uint8)}
    for name, kind in _FLAT.items():
        values = [_as_array(getattr(rollout, name)) for rollout in rollouts]
        arrays[name] = np.concatenate([np.empty(0, kind), *(array for array in values if array is not None)])
        arrays[f"{name}_lengths"] = np.array([_NONE if a is None else len(a) for a in values], dtype=np.int64)
    write_arrays(path, arrays)


def read_batches(path: Path) -> list[list[RolloutGroup]]:
    """Reverses `write_batches`.

    Raises:
        ValueError, LookupError, TypeError, UserError: the file does not have the form that `write_batches` writes.
        OSError: it cannot be read.
    """
    arrays = read_arrays(path)
    rows = json.loads(arrays["rows"].tobytes())
    rollouts = [rollout for batch in rows for group in batch for rollout in group["rollouts"]]
    for name in _FLAT:
        values = _split(arrays, name)
        if name in _TEXTS:
            values = [bytes(value).decode("utf-8", "surrogatepass") for value in values]
        for rollout, value in zip(rollouts, values, strict=True):
            rollout[name] = value
    return [[_group_from_row(group) for group in batch] for batch in rows]


def _group_row(group: RolloutGroup) -> dict[str, Any]:
    rollouts = [{name: getattr(rollout, name) for name in _JSON_FIELDS} for rollout in group.rollouts]
    return {"prompt": asdict(replace(group.prompt, metadata={})), "rollouts": rollouts}


def _group_from_row(row: dict[str, Any]) -> RolloutGroup:
    rollouts = [Rollout(**_tupled(rollout)) for rollout in row["rollouts"]]
    return RolloutGroup(prompt=Prompt(**_tupled(row["prompt"])), rollouts=rollouts)


def _as_array(value: np.ndarray | str | None) -> np.ndarray | None:
    if isinstance(value, str):
        return np.frombuffer(value.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    return value


def _split(arrays: Mapping[str, np.ndarray], name: str) -> list[Any]:
    """Returns a field of each rollout, as read-only views of the flat array."""
    flat, lengths = arrays[name], arrays[f"{name}_lengths"]
    ends = lengths.clip(min=0).cumsum()
    freeze(flat)
    return [None if n == _NONE else flat[end - n : end] for n, end in zip(lengths.tolist(), ends.tolist(), strict=True)]


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    def of(value: Any) -> Any:
        return tuple(map(of, value)) if isinstance(value, list) else value

    return {key: of(value) for key, value in values.items()}
