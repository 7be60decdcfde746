"""Writes metrics: always as JSONL, and to TensorBoard and Weights & Biases if the run asks for them."""

import importlib.util
import io
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_sspo.errors import UserError, os_errors_as_user_errors, short_repr
from megatron_sspo.files.reading import read_bytes, read_text
from megatron_sspo.files.writing import write_atomically

if TYPE_CHECKING:
    from megatron_sspo.run import Tracking

_WANDB_ID = "wandb_id"
METRICS, EVALUATIONS, ROLLOUTS = "metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl"
_MOST_UPDATES = 10**15  # a larger number in a row is an error


def check(tracking: "Tracking") -> None:
    """Raises UserError if the run asks for a tracker that is not installed."""
    for is_requested, module in ((tracking.tensorboard, "tensorboard"), (bool(tracking.wandb_project), "wandb")):
        spec = importlib.util.find_spec(module) if is_requested else None
        if is_requested and (
            spec is None or spec.origin is None
        ):  # no origin: a mere folder, such as W&B leaves behind
            raise UserError(
                f"tracking asks for {module}, which is not installed: pip install 'megatron-sspo[tracking]'"
            )


class MetricsWriter:
    """The writer of metrics rows. Only rank 0 has one.

    Args:
        first_step: the first step of this attempt at the run. TensorBoard drops steps from there on that an earlier,
            killed attempt wrote.
    """

    def __init__(self, folder: Path, tracking: "Tracking", name: str, config: Any, *, first_step: int) -> None:
        self.folder = folder
        self._tensorboard: Any = None
        self._wandb: Any = None
        if tracking.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._tensorboard = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        if tracking.wandb_project:
            import wandb  # pyright: ignore[reportMissingImports]

            id = _wandb_id(folder)
            where: dict[str, Any] = {"dir": str(folder), "id": id, "resume": "allow"}
            self._wandb = wandb.init(project=tracking.wandb_project, name=name, config=config, **where)

    def write(self, file_name: str, row: Mapping[str, float]) -> None:
        """Appends a row, whose `update` is the trackers' step. The row is on disk when this returns.

        Raises:
            UserError: the file cannot be written.
        """
        path = self.folder / file_name
        with os_errors_as_user_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(row)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        step = int(row["update"])
        values = {key: value for key, value in row.items() if key != "update"}
        if self._tensorboard is not None:
            for key, value in values.items():
                self._tensorboard.add_scalar(key, value, step)
            self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log(values, step=step)

    def close(self) -> None:
        """Closes the trackers."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _wandb_id(folder: Path) -> str:
    """Returns the run's W&B id, so that all attempts extend one curve; W&B skips steps that it already has."""
    path = folder / _WANDB_ID
    if not path.exists():
        write_atomically(path, secrets.token_hex(8))
    return read_text(path)


def read(path: Path, *, may_be_cut: bool = False) -> list[dict[str, float]]:
    """Returns the rows of a metrics file.

    Args:
        may_be_cut: whether an incomplete last line, which a kill can leave, is ignored.

    Raises:
        UserError: the file does not exist, or a line is not JSON or not a row.
    """
    with os_errors_as_user_errors():
        if not path.exists():
            raise UserError(f"there is no {path}: is {path.parent} the folder of a run?")
    lines = _read_lines(path)
    if may_be_cut and len(lines) > 1 and not lines[-1].endswith(b"\n"):
        del lines[-1]
    return [_parse_row(path, number, line) for number, line in enumerate(lines, start=1)]


def check_rows(path: Path, update: int) -> None:
    """Checks that a metrics file has a row of every update up to `update`.

    Raises:
        UserError: the file is missing, a line cannot be read, or a row is missing.
    """
    found = {row["update"] for row in read_complete_rows(path)}
    if missing := [number for number in range(1, update + 1) if number not in found]:
        raise UserError(
            f"{path} has no row of update {missing[0]}, but the checkpoint is of update {update}: restore the file, "
            "or delete the checkpoints of later updates to resume from an older one"
        )


def read_complete_rows(path: Path) -> list[dict[str, float]]:
    """Returns the rows of a metrics file without an incomplete last line; no rows if the file does not exist.

    Raises:
        UserError: a line is not JSON, or not a row.
    """
    if not path.exists():
        return []
    lines = [line for line in _read_lines(path) if line.endswith(b"\n")]
    return [_parse_row(path, number, line) for number, line in enumerate(lines, start=1)]


def truncate_after(path: Path, update: int) -> None:
    """Removes the rows of updates after `update`, and an incomplete last line, from a metrics file.

    Raises:
        UserError: another line is not JSON or not a row.
    """
    if not path.exists():
        return
    kept = [row for row in read_complete_rows(path) if row["update"] <= update]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))


def _read_lines(path: Path) -> list[bytes]:
    """Returns the lines as bytes with their ends, so that the parser can name a line that is not UTF-8."""
    return list(io.BytesIO(read_bytes(path)))


def _parse_row(path: Path, number: int, line: bytes) -> dict[str, float]:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text: fix or remove the line") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): fix or remove the line") from error
    if not isinstance(row, dict) or "update" not in row:
        raise UserError(f"{where} has no update: fix or remove the line")
    update = row["update"]
    if not isinstance(update, (int, float)) or not 0 <= update < _MOST_UPDATES:
        raise UserError(f"{where} has update {short_repr(update)}: fix or remove the line")
    return row
