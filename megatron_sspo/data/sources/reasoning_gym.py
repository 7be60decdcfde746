"""Procedural tasks of the package reasoning-gym: unlimited in number, with gold answers, reproducible by seed."""

import dataclasses
import difflib
from typing import Any

from megatron_sspo.data.row import Dropped, Fields, Record, Row, row_from_record
from megatron_sspo.errors import UserError

_FIELDS = Fields(question="question", answer="answer")


def rows(task: str, size: int, seed: int = 0, **options: Any) -> list[Row | Dropped]:
    """Returns `size` questions of one task; one without a gold answer, as in "rubiks_cube", is dropped.

    Only questions and gold answers come from the package. Responses are scored by this project's own reward, because
    the package's scorers expect the bare answer and give partial credit for an answer with text around it.

    Args:
        task: a name of reasoning-gym, such as "chain_sum".
        size: number of questions.
        seed: seed of the questions. Another seed gives other questions, but not a disjoint set.
        options: fields of the task's own configuration, such as min_terms=2.

    Raises:
        UserError: the package is missing, has no such task or option, or refuses a value.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise UserError(
            f"the source reasoning_gym needs a package that is missing ({error.name}): pip install reasoning-gym"
        ) from error

    if task not in DATASETS:
        close = difflib.get_close_matches(task, DATASETS, n=3) or sorted(DATASETS)
        raise UserError(f"reasoning-gym has no task {task!r}: choose one, such as {', '.join(close)}")
    valid = {f.name for f in dataclasses.fields(DATASETS[task][1])}
    if unknown := sorted(options.keys() - valid):
        raise UserError(
            f"the task {task!r} has no option {', '.join(unknown)}: its options are {', '.join(sorted(valid))}"
        )
    try:
        entries = list(reasoning_gym.create_dataset(task, size=size, seed=seed, **options))
    except (AssertionError, ValueError, TypeError) as error:
        raise UserError(f"reasoning-gym rejects the options of {task!r} (size={size}, {options}): {error}") from error
    rows: list[Row | Dropped] = []
    for number, entry in enumerate(entries, start=1):
        id = f"{task}/{seed}:{number}"
        if entry["answer"] is None:  # some tasks judge an answer by rules alone
            rows.append(Dropped(id=id, reason="has no gold answer", detail=task))
            continue
        place = f"reasoning-gym {task} with seed {seed}, entry {number}"
        values = {**entry["metadata"], "question": entry["question"], "answer": entry["answer"]}
        rows.append(row_from_record(Record(id=id, place=place, values=values), _FIELDS))
    return rows
