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

    Published as xingyaoww/code-act: split codeact (7,139 rows; the split general is chat and not used). Columns: `id`;
    `conversations`, messages with `role` (system, user, assistant) and `content`. The task is the first user message.
    The published rows are demonstrations and carry no checks. The gold answer is therefore the last <solution> of the
    assistant, if it is one line of at most 200 characters; a row without one is dropped. A file may add the columns
    `answer`, `tests` and `cases` (docs/sandbox.md), which then replace the demonstration's answer. The column names
    are those of the dataset card; how often its demonstrations end in such a <solution> was not checked.

    There is no published test split: a hash of the task's text holds out one task in ten. Of several rows with the
    same task, the first is kept.

    Args:
        split: "train" or "test".
        path: files to read in place of the hub; see `Published.records`. In a folder they are named codeact.

    Raises:
        UserError: see `Published.records`, or a conversation has another form.
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
