"""Reads and writes the state of a run except the trainer's tensors, atomically."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.errors import UserError, first_line, os_errors_as_user_errors, short_repr
from megatron_sspo.files.removing import remove
from megatron_sspo.files.writing import flush_to_disk, write_atomically
from megatron_sspo.types import RolloutGroup

_NAME = re.compile(r"update-(\d{6,})")
_INCOMPLETE = ".update-*"
_FORMAT = 6  # of state.json and batches.npz
LOOP_STATE = ("prompts", "cycles")  # names in a run's checkpoint in addition to its `State`
INITIAL_WEIGHTS = "initial_weights"  # another, that of `ModelFolder.fingerprint` of the weights that the run began with
TEACHER_WEIGHTS = "teacher_weights"  # another, the same of the teacher's weights; "" without a teacher


@dataclass
class State:
    """The progress of a run."""

    update: int = 0  # optimizer steps taken; also the policy version
    batches: list[list[RolloutGroup]] = field(default_factory=list)  # the current cycle's batches not yet trained on
    is_warm_started: bool = False  # whether its weights come of a warm start, which any attempt at the run has done


def begin_checkpoint(folder: Path, update: int) -> Path:
    """Makes an empty folder with a name that no reader takes for a checkpoint, and removes incomplete older ones."""
    for left in folder.glob(_INCOMPLETE):
        remove(left)
    temporary = folder / f".update-{update:06d}-{secrets.token_hex(4)}"  # an older one may not be removable now
    (temporary / "trainer").mkdir(parents=True)
    return temporary


def bytes_left(folder: Path) -> int:
    """Returns the size of the incomplete checkpoints in a folder, which `begin_checkpoint` removes."""
    incomplete = (path for path in folder.glob(_INCOMPLETE) if not path.is_symlink())
    return sum(file.stat().st_size for path in incomplete for file in path.rglob("*") if file.is_file())


def describe_checkpoint(temporary: Path, state: State, extra: dict[str, Any]) -> None:
    """Writes the state and `extra` into the folder of a checkpoint."""
    write_batches(temporary / "batches.npz", state.batches)
    values = {
        "format": _FORMAT,
        "update": state.update,
        "batch_sizes": [len(batch) for batch in state.batches],
        "is_warm_started": state.is_warm_started,
    }
    write_atomically(temporary / "state.json", json.dumps({**values, **extra}, indent=1))


def finish_checkpoint(temporary: Path, *, kept: int) -> Path:
    """Flushes the folder to disk, gives it its final name, and removes all but the newest `kept` checkpoints."""
    final = temporary.with_name(temporary.name[1:].rpartition("-")[0])
    for path in (*temporary.rglob("*"), temporary):
        flush_to_disk(path)
    aside = [_set_aside(final)] if final.exists() else []  # the run was resumed from an older checkpoint
    temporary.rename(final)
    flush_to_disk(final.parent)
    # A file that cannot be removed now, such as one that NFS keeps because an evaluation reads it, does not end the
    # run: the next checkpoint removes it.
    for old in list_checkpoints(final.parent)[:-kept]:
        with contextlib.suppress(OSError):
            aside.append(_set_aside(old))
    for path in aside:
        remove(path)
    return final


def _set_aside(checkpoint: Path) -> Path:
    """Renames a checkpoint that is to be removed, so that a kill leaves no incomplete folder under the final name."""
    return checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}-removed-{secrets.token_hex(4)}"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the complete checkpoints of a run, oldest first. Raises OSError if the folder cannot be read."""
    names = os.listdir(folder) if folder.exists() else []
    found = [(int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))]
    return [path for _, path in sorted(found)]


@os_errors_as_user_errors()
def read_checkpoint(path: Path, needed: Sequence[str] = ()) -> tuple[State, dict[str, Any]]:
    """Returns the state, and the `extra` values that `describe_checkpoint` wrote, which must have the `needed` names.

    Raises:
        UserError: a part of the checkpoint is missing, cannot be read, or has another format.
    """
    with _damage_as_user_error(path):
        extra = json.loads((path / "state.json").read_text(encoding="utf-8"))
        update, sizes, written = extra.pop("update"), extra.pop("batch_sizes"), extra.pop("format", 1)
        is_warm_started = extra.pop("is_warm_started", False)  # other formats do not have it
        if missing := [name for name in needed if name not in extra]:
            raise ValueError(f"state.json has no {', '.join(missing)}")
    if written != _FORMAT:
        raise UserError(
            f"the checkpoint {path} has format {short_repr(written)}, and this version of megatron_sspo reads format "
            f"{_FORMAT}: resume with the version that wrote it, or start a new run"
        )
    with _damage_as_user_error(path):
        batches = read_batches(path / "batches.npz")
        if [len(batch) for batch in batches] != sizes or not (path / "trainer").is_dir():
            raise ValueError("batches.npz does not belong to state.json, or there is no trainer")
    return State(update, batches, is_warm_started), extra


@contextlib.contextmanager
def _damage_as_user_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise UserError(
            f"the checkpoint {path} is damaged ({type(error).__name__}: {first_line(error)}): delete that folder to "
            "resume from an older one"
        ) from error
