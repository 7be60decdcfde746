"""DAPO-Math-17k: competition problems with integer answers (Yu et al., arXiv 2503.14476)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron_sspo.data.row import Fields, Row, row_from_record
from megatron_sspo.data.sources.published import Published

_SET = Published(
    name="dapo_math",
    repository="BytedTsinghua-SIA/DAPO-Math-17k",
    splits=("train",),
    columns=("prompt", "reward_model"),
)
_FIELDS = Fields(question="prompt", answer="reward_model.ground_truth")
_PREFIX = "Solve the following math problem step by step."
_SUFFIX = "Remember to put your answer on its own line after"


def rows(split: str = "train", path: str | Path = "") -> list[Row]:
    """Returns each problem once, without the published instruction to end in "Answer: ...".

    Published are about 1.79 million rows, in which 17 thousand problems are repeated a hundred times; a row that
    repeats an earlier problem and answer is skipped. The bare problem as text in `prompt`, as in
    open-r1/DAPO-Math-17k-Processed, is read from files with the same columns. It was not checked that every instruction
    of the set has the form that is removed here; a prompt of another form is left unchanged.

    Args:
        split: "train", the only split.
        path: files to read in place of the hub; see `Published.records`.
    """
    found: dict[str, Row] = {}
    for record in _SET.records(split, path):
        values = {**record.values, "prompt": _problem(record.values["prompt"])}
        if (key := repr(values)) not in found:
            found[key] = row_from_record(replace(record, values=values), _FIELDS)
    return list(found.values())


def _problem(prompt: Any) -> Any:
    """Removes the published instruction around a problem; a prompt of another form is returned unchanged."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict):
        prompt = prompt[0].get("content")
    if not isinstance(prompt, str) or not prompt.startswith(_PREFIX):
        return prompt
    _, _, problem = prompt.partition("\n\n")
    problem, _, _ = problem.partition(f"\n\n{_SUFFIX}")
    return problem.strip() or prompt
