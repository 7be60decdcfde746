"""Reads the responses that the live page shows: rollouts of the newest update, and answers of the last evaluation."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import open_file
from megatron_sspo.plots.live.following import parse_object
from megatron_sspo.run_folder import metrics_files

_ANSWERS = "evaluation_responses.jsonl"
_MAX_ROWS = 16
_MAX_BYTES = 1 << 20
_ROLLOUT = ("update", "id", "prompt", "gold", "reward", "parts", "advantage", "sequence_weight", "tokens")
_ROLLOUT += ("finish_reason", "pieces")  # the fields of a rollout
_ENDS = 4_000  # characters at the beginning of an answer, and as many at its end; the rest of a longer one is left out

Row = dict[str, Any]


def read_rollouts(folder: Path, query: Mapping[str, str]) -> Row:
    """Returns the rollouts of the newest update as `rows`, and their `version`.

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
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return {"version": "", "rows": []}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:_MAX_ROWS]
    rows = [row for row in map(parse_object, lines) if row is not None]
    try:
        return {"version": version, "rows": [form(row) for row in rows]}
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} does not have the form that a run writes: was it written by another program?"
        ) from error


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
