"""Procedural tasks of the package reasoning-gym: unlimited in number, with gold answers, reproducible by seed."""

from typing import Any

from megatron_sspo.data.row import Dropped, Fields, Record, Row, row_from_record

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
    """
    import reasoning_gym

    rows: list[Row | Dropped] = []
    entries = reasoning_gym.create_dataset(task, size=size, seed=seed, **options)
    for number, entry in enumerate(entries, start=1):
        id = f"{task}/{seed}:{number}"
        if entry["answer"] is None:  # some tasks judge an answer by rules alone
            rows.append(Dropped(id=id, reason="has no gold answer", detail=task))
            continue
        place = f"reasoning-gym {task} with seed {seed}, entry {number}"
        values = {**entry["metadata"], "question": entry["question"], "answer": entry["answer"]}
        rows.append(row_from_record(Record(id=id, place=place, values=values), _FIELDS))
    return rows
