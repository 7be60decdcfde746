"""DAPO-Math-17k: competition problems with integer answers (Yu et al., arXiv 2503.14476)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_sspo.data.published import Published
from megatron_sspo.data.row import Fields, Record, Row, row_from_record

_SET = Published(
    name="dapo_math",
    repository="BytedTsinghua-SIA/DAPO-Math-17k",
    splits=("train",),
    columns=("prompt", "reward_model"),
)
_FIELDS = Fields(question="prompt", answer="reward_model.ground_truth")
_LEAD = "Solve the following math problem step by step."
_REMINDER = "Remember to put your answer on its own line after"


def rows(split: str = "train", path: str | Path = "") -> list[Row]:
    """The problems themselves: without the makers' instruction to end in "Answer: ...", and once each.

    Published as BytedTsinghua-SIA/DAPO-Math-17k: train, about 1.79 million rows, in which 17 thousand problems are
    repeated a hundred times; a row whose problem and answer were there before is passed over. Columns: `prompt`, a list
    with one message of the user; `reward_model`, of which `ground_truth` is the answer; `data_source`, `ability`,
    `extra_info`. Copies with the bare problem as text in `prompt`, such as open-r1/DAPO-Math-17k-Processed, are read
    from files with the same names of columns. Whether every instruction has the form that is cut off here was not
    checked against the whole set; a prompt of another form stays as it is.

    Args:
        split: "train", the only one.
        path: files in place of the hub, see `Published.records`.

    Raises:
        UserError: see `Published.records`.
    """
    return [row_from_record(record, _FIELDS) for record in _first_copies(_SET.records(split, path))]


def _first_copies(records: Iterator[Record]) -> Iterator[Record]:
    seen: set[str] = set()
    for record in records:
        values = {**record.values, "prompt": problem_of(record.values["prompt"])}
        key = repr(values)
        if key not in seen:
            seen.add(key)
            yield replace(record, values=values)


def problem_of(prompt: Any) -> Any:
    """The problem inside of the makers' instruction; a prompt of another form as it is."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict):
        prompt = prompt[0].get("content")
    if not isinstance(prompt, str) or not prompt.startswith(_LEAD):
        return prompt
    _, _, problem = prompt.partition("\n\n")
    problem, _, _ = problem.partition(f"\n\n{_REMINDER}")
    return problem.strip() or prompt
