"""Reads the responses that the live page shows: rollouts of the newest update, and answers of the last evaluation."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import open_file
from megatron_sspo.plots.live.following import parse_object
from megatron_sspo.run_folder import metrics_files

_ANSWERS = "evaluation_responses.jsonl"
_MAX_ROWS = 16
_LONGEST_LINE = 1 << 22  # bytes
_ROLLOUT = ("update", "id", "prompt", "gold", "reward", "parts", "advantage", "sequence_weight", "tokens")
_ROLLOUT += ("finish_reason", "pieces")  # the fields of a rollout
_ENDS = 4_000  # characters at the beginning of an answer, and as many at its end; the rest of a longer one is left out

Row = dict[str, Any]


def read_rollouts(folder: Path, query: Mapping[str, str]) -> Row:
    """Returns the rollouts of the newest update as `rows`, and their `version`; one that is too long is a `note`.

    Args:
        folder: the folder of the run.
        query: `seen`, the version that the page has; if it is still the newest, `rows` is None.

    Raises:
        UserError: the file cannot be read.
    """
    return _read(
        folder / metrics_files.ROLLOUTS, query.get("seen", ""), lambda row: {name: row[name] for name in _ROLLOUT}
    )


def read_answers(folder: Path, query: Mapping[str, str]) -> Row:
    """Returns the first greedy answers of the last evaluation, in the form of `read_rollouts`.

    Raises:
        UserError: the file cannot be read.
    """
    return _read(folder / _ANSWERS, query.get("seen", ""), _answer)


def _read(path: Path, seen: str, form: Callable[[Row], Row]) -> Row:
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            version = f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"
            if version == seen:
                return {"version": version, "rows": None}
            rows = list(_rows(file, form))
    except FileNotFoundError:
        return {"version": "", "rows": []}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} does not have the form that a run writes: was it written by another program?"
        ) from error
    return {"version": version, "rows": rows}


def _rows(file: BinaryIO, form: Callable[[Row], Row]) -> Iterator[Row]:
    """Yields the rows of the first complete lines; a line that is too long is a `note`."""
    for _ in range(_MAX_ROWS):
        line = file.readline(_LONGEST_LINE)
        if line.endswith(b"\n"):
            if (row := parse_object(line)) is not None:
                yield form(row)
        elif len(line) == _LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(_LONGEST_LINE)
            yield {"note": f"a response of more than {_LONGEST_LINE:,} bytes is left out"}
        else:
            return


def _answer(row: Row) -> Row:
    answer = row["answers"][0]
    text = answer["text"]
    if len(text) > 2 * _ENDS:
        text = f"{text[:_ENDS]}\n[{len(text) - 2 * _ENDS:,} characters are left out]\n{text[-_ENDS:]}"
    return {
        "id": row["id"],
        "set": row["set"],
        "prompt": row["prompt"],
        "gold": row["gold"],
        "reward": math.fsum(answer["reward"].values()),  # an OverflowError instead of an infinity
        "parts": answer["reward"],
        "tokens": answer["tokens"],
        "finish_reason": answer["finish_reason"],
        "pieces": [(text, None)],
    }
