"""CodeActInstruct: tasks that an agent solves by writing Python (Wang et al., ICML 2024, arXiv 2402.01030)."""

import hashlib
import re
from pathlib import Path
from typing import Literal

from megatron_sspo.data.row import Dropped, Record, Row
from megatron_sspo.data.sources.published import Published
from megatron_sspo.errors import UserError

_SET = Published(
    name="codeact",
    repository="xingyaoww/code-act",
    splits=("codeact",),
    columns=("conversations",),
    metadata=("id", "answer", "tests", "cases"),
)
_SOLUTION = re.compile(r"<solution>((?:(?!</?solution>).)*)</solution>", re.DOTALL)
_MAX_ANSWER = 200  # characters
_TEST_TENTHS = 1  # number of tasks in ten


def rows(split: Literal["train", "test"] = "train", path: str | Path = "") -> list[Row | Dropped]:
    """Returns the tasks, with the output that a program has to print or the checks that it has to pass.

    A row of the published split codeact is a demonstration: the task is the first message of the user, and the gold
    answer the last <solution> of the assistant, if it is one line of at most 200 characters. A row without one, or with
    the task of an earlier row, is dropped. A file may add the columns `answer`, `tests` and `cases` (docs/sandbox.md),
    which replace the demonstration's answer. A hash of the task's text holds out one task in ten. How often published
    demonstrations end in such a <solution> was not checked.

    Args:
        split: "train" or "test".
        path: files to read in place of the hub; see `Published.records`. In a folder they are named codeact.
    """
    found: list[Row | Dropped] = []
    seen: set[str] = set()
    for record in _SET.records("codeact", path):
        task, answer = _read_task(record)
        if _is_test(task) != (split == "test"):
            continue
        has_checks = bool(record.values.get("tests") or record.values.get("cases"))
        if task in seen:
            found.append(Dropped(id=record.id, reason="repeats the task of an earlier row"))
        elif not answer and not has_checks:
            found.append(Dropped(id=record.id, reason="has no answer of one line and no checks"))
        else:
            seen.add(task)
            metadata = {name: record.values[name] for name in ("id", "tests", "cases") if record.values.get(name)}
            found.append(Row(id=record.id, question=task, answer=answer, metadata=metadata))
    return found


def _read_task(record: Record) -> tuple[str, str]:
    """Returns task and answer of a row; the answer is "" if there is none."""
    messages = record.values["conversations"]
    try:
        texts = [(message["role"], message["content"]) for message in messages]
        task = next(text for role, text in texts if role == "user")
    except (TypeError, KeyError, StopIteration) as error:
        raise UserError(
            f"{record.place}, field 'conversations': it must be a list of messages with the texts 'role' and "
            "'content', one of them the user's: fix or drop the row"
        ) from error
    given = record.values.get("answer")
    if given is not None and given != "":
        return task, str(given).strip()
    solutions = _SOLUTION.findall("\n".join(text for role, text in texts if role == "assistant"))
    answer = solutions[-1].strip() if solutions else ""
    return task, answer if "\n" not in answer and len(answer) <= _MAX_ANSWER else ""


def _is_test(task: str) -> bool:
    digest = hashlib.blake2b(task.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 10 < _TEST_TENTHS
