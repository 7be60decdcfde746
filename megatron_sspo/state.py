"""What a run is besides the trainer's tensors, and how it gets to disk without ever being half there."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

_NAME = re.compile(r"update-(\d{6,})")
_FILES = ("state.json", "batches.jsonl", "trainer")
LOOP_STATE = ("prompts", "cycles")  # what a run's checkpoint holds besides its `State`


@dataclass
class State:
    """Where a run stands."""

    update: int = 0  # optimizer steps taken; also the policy version
    batches: list[list[RolloutGroup]] = field(default_factory=list)  # of the current cycle, still to be learned from


def prompt_row(prompt: Prompt) -> dict[str, Any]:
    """A prompt as JSON values; what JSON has no word for, such as a date in its metadata, becomes text."""
    return json.loads(json.dumps(asdict(prompt), default=str))


def prompt_from_row(row: dict[str, Any]) -> Prompt:
    """The reverse of `prompt_row`."""
    return Prompt(**_tupled(row))


def to_row(group: RolloutGroup) -> dict[str, Any]:
    """A group as JSON values. Floats keep every bit: Python writes the shortest text that reads back the same."""
    return {"prompt": asdict(group.prompt), "rollouts": [asdict(rollout) for rollout in group.rollouts]}


def from_row(row: dict[str, Any]) -> RolloutGroup:
    """The reverse of `to_row`."""
    return RolloutGroup(
        prompt=prompt_from_row(row["prompt"]), rollouts=[Rollout(**_tupled(rollout)) for rollout in row["rollouts"]]
    )


def _tupled(values: dict[str, Any]) -> dict[str, Any]:
    def of(value: Any) -> Any:
        return tuple(map(of, value)) if isinstance(value, list) else value

    return {key: of(value) for key, value in values.items()}


def write_atomically(path: Path, text: str) -> None:
    """Writes beside `path`, then renames, so that a reader finds the old file or the new one."""
    temporary = path.with_name(f".{path.name}.new")  # the next attempt replaces what a kill has left of this one
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSON lines, atomically.

    What JSON has no word for, such as a date in a prompt's metadata, becomes text: only the reward looks at metadata,
    and what is written here has its reward.
    """
    write_atomically(path, "".join(json.dumps(row, default=str) + "\n" for row in rows))


def begin_checkpoint(folder: Path, update: int) -> Path:
    """An empty folder under a name that no reader takes for a checkpoint; what kills have left of others is removed."""
    for left in folder.glob(".update-*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder / f".update-{update:06d}"
    (temporary / "trainer").mkdir(parents=True)
    return temporary


def describe_checkpoint(temporary: Path, state: State, extra: dict[str, Any]) -> None:
    """Adds the state, and whatever else there is to say."""
    rows = [{"batch": number, **to_row(group)} for number, batch in enumerate(state.batches) for group in batch]
    write_rows(temporary / "batches.jsonl", rows)
    numbers = {"update": state.update, "batch_sizes": [len(batch) for batch in state.batches]}
    write_atomically(temporary / "state.json", json.dumps({**numbers, **extra}, indent=1))


def finish_checkpoint(temporary: Path, *, kept: int) -> Path:
    """Gives the folder its name, when all of it is on the disk, and removes all but the newest `kept`."""
    final = temporary.with_name(temporary.name[1:])
    for path in (*temporary.rglob("*"), temporary):
        _flush(path)
    if final.exists():  # of an attempt that was resumed from an older checkpoint
        _remove(final)
    temporary.rename(final)
    _flush(final.parent)
    for old in checkpoints(final.parent)[:-kept]:
        _remove(old)
    return final


def _flush(path: Path) -> None:
    """Waits until a file, or a folder's list of names, would survive the machine's end."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # not every file system can do it for a folder
            raise
    finally:
        os.close(descriptor)


def _remove(checkpoint: Path) -> None:
    """A kill in the middle leaves nothing that has a checkpoint's name."""
    unnamed = checkpoint.with_name(f".{checkpoint.name}-removed")
    checkpoint.rename(unnamed)
    shutil.rmtree(unnamed)


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    names = os.listdir(folder) if folder.exists() else []
    found = [(int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))]
    return [path for _, path in sorted(found)]


def read_checkpoint(path: Path, needed: Sequence[str] = ()) -> tuple[State, dict[str, Any]]:
    """The state, and what `describe_checkpoint` was given besides.

    Args:
        needed: names that have to be among the latter.

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
            raise ValueError("batches.jsonl is not whole")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"the checkpoint {path} is damaged ({error!r}): delete that folder to resume from an older one"
        ) from error
    return State(update=update, batches=batches), extra
