"""Reads and writes the state of a run except the trainer's tensors, atomically."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import write_atomically, write_rows
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

_NAME = re.compile(r"update-(\d{6,})")
_FILES = ("state.json", "batches.jsonl", "trainer")
LOOP_STATE = ("prompts", "cycles")  # names in a run's checkpoint in addition to its `State`


@dataclass
class State:
    """The progress of a run."""

    update: int = 0  # optimizer steps taken; also the policy version
    batches: list[list[RolloutGroup]] = field(default_factory=list)  # the current cycle's batches not yet trained on


def prompt_row(prompt: Prompt) -> dict[str, Any]:
    """Returns a prompt as JSON values; values without a JSON type, such as a date in its metadata, become strings."""
    return json.loads(json.dumps(asdict(prompt), default=str))


def prompt_from_row(row: dict[str, Any]) -> Prompt:
    """Reverses `prompt_row`."""
    return Prompt(**_tupled(row))


def to_row(group: RolloutGroup) -> dict[str, Any]:
    """Returns a group as JSON values. Floats keep every bit: Python writes the shortest text that reads back equal."""
    return {"prompt": asdict(group.prompt), "rollouts": [asdict(rollout) for rollout in group.rollouts]}


def from_row(row: dict[str, Any]) -> RolloutGroup:
    """Reverses `to_row`."""
    return RolloutGroup(
        prompt=prompt_from_row(row["prompt"]), rollouts=[Rollout(**_tupled(rollout)) for rollout in row["rollouts"]]
    )


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    def of(value: Any) -> Any:
        return tuple(map(of, value)) if isinstance(value, list) else value

    return {key: of(value) for key, value in values.items()}


def begin_checkpoint(folder: Path, update: int) -> Path:
    """Makes an empty folder with a name that no reader takes for a checkpoint, and removes incomplete older ones."""
    for left in folder.glob(".update-*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder / f".update-{update:06d}"
    (temporary / "trainer").mkdir(parents=True)
    return temporary


def describe_checkpoint(temporary: Path, state: State, extra: dict[str, Any]) -> None:
    """Writes the state and `extra` into the folder of a checkpoint."""
    rows = [{"batch": number, **to_row(group)} for number, batch in enumerate(state.batches) for group in batch]
    write_rows(temporary / "batches.jsonl", rows)
    numbers = {"update": state.update, "batch_sizes": [len(batch) for batch in state.batches]}
    write_atomically(temporary / "state.json", json.dumps({**numbers, **extra}, indent=1))


def finish_checkpoint(temporary: Path, *, kept: int) -> Path:
    """Flushes the folder to disk, gives it its final name, and removes all but the newest `kept` checkpoints."""
    final = temporary.with_name(temporary.name[1:])
    for path in (*temporary.rglob("*"), temporary):
        _flush(path)
    if final.exists():  # the run was resumed from an older checkpoint
        _remove(final)
    temporary.rename(final)
    _flush(final.parent)
    for old in list_checkpoints(final.parent)[:-kept]:
        _remove(old)
    return final


def _flush(path: Path) -> None:
    """Flushes a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems cannot fsync a folder
            raise
    finally:
        os.close(descriptor)


def _remove(checkpoint: Path) -> None:
    """Removes a checkpoint; it is renamed first, so that a kill leaves no incomplete folder under the final name."""
    unnamed = checkpoint.with_name(f".{checkpoint.name}-removed")
    checkpoint.rename(unnamed)
    shutil.rmtree(unnamed)


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the complete checkpoints of a run, oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    names = os.listdir(folder) if folder.exists() else []
    found = [(int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))]
    return [path for _, path in sorted(found)]


def read_checkpoint(path: Path, needed: Sequence[str] = ()) -> tuple[State, dict[str, Any]]:
    """Returns the state, and the `extra` values that `describe_checkpoint` wrote.

    Args:
        needed: names that the `extra` values must contain.

    Raises:
        UserError: a part of the checkpoint is missing or cannot be read.
    """
    missing = [name for name in _FILES if not (path / name).exists()]
    if missing:
        raise UserError(f"the checkpoint {path} has no {missing[0]}: delete that folder to resume from an older one")
    try:
        extra = json.loads((path / "state.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (path / "batches.jsonl").read_text(encoding="utf-8").splitlines()]
        update, sizes = extra.pop("update"), extra.pop("batch_sizes")
        if missing := [name for name in needed if name not in extra]:
            raise ValueError(f"state.json has no {', '.join(missing)}")
        batches: list[list[RolloutGroup]] = [[] for _ in sizes]
        for row in rows:
            batches[row.pop("batch")].append(from_row(row))
        if [len(batch) for batch in batches] != sizes:
            raise ValueError("batches.jsonl is incomplete")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"the checkpoint {path} is damaged ({error!r}): delete that folder to resume from an older one"
        ) from error
    return State(update=update, batches=batches), extra
