"""Audits a finished run: each prompt is drawn once, and each response is trained on at most once."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

_LONG = 10  # responses of so many tokens are not equal by chance


@dataclass
class AuditResult:
    """The result of the audit of a run that has finished."""

    updates: int = 0
    updates_lost: int = 0  # repeated, because an attempt ended before their checkpoint was complete
    rollouts_lost: int = 0  # missing from the history
    rollouts_doubled: int = 0  # trained on twice
    judged: int = 0  # programs that the sandbox has judged
    judged_wrong: int = 0
    errors: list[str] = field(default_factory=list)


def audit(
    journal: Path, run: Path, expected: Sequence[Sequence[str]], group_size: int, *, is_served: bool
) -> AuditResult:
    """Checks the final history, which has each update as it was made last.

    Args:
        journal: the file in which rank 0 has recorded each update, over all attempts.
        run: the run's folder.
        expected: the prompts that each update must train on, in order: those of the stream, without gaps.
        group_size: the number of responses to a prompt.
        is_served: whether responses come from servers. A seed does not repeat them, so two equal responses are one
            response that was used twice.
    """
    text = journal.read_text(encoding="utf-8") if journal.exists() else ""  # without an update there is no journal
    lines = [json.loads(line) for line in text.splitlines()]
    result = AuditResult(updates=len(expected), updates_lost=_count_lost(lines))
    history = final_history(lines)
    if sorted(history) != list(range(1, len(expected) + 1)):
        result.errors.append(f"the updates that count are {_ranges(sorted(history))}, of {len(expected)}")
    for update, wanted in enumerate(expected, start=1):
        _check_update(result, update, history.get(update), wanted, group_size)
    if is_served:
        _check_responses(result, history)
        _check_verdicts(result, journal.with_name("verdicts.jsonl"))
    _check_metrics(result, run / "metrics.jsonl")
    return result


def final_history(lines: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns update -> its last line. Updates that a later attempt repeated from an older checkpoint do not count."""
    history: dict[int, dict[str, Any]] = {}
    for line in lines:
        for later in [update for update in history if update >= line["update"]]:
            del history[later]
        history[line["update"]] = line
    return history


def _count_lost(lines: Sequence[dict[str, Any]]) -> int:
    lost = 0
    for before, after in pairwise(lines):
        lost += max(0, before["update"] - after["update"] + 1)
    return lost


def _check_update(
    result: AuditResult, update: int, line: dict[str, Any] | None, wanted: Sequence[str], group_size: int
) -> None:
    found = Counter(group["prompt"] for group in line["groups"]) if line else Counter()
    missing, twice = Counter(wanted) - found, found - Counter(wanted)
    if missing or twice:
        result.errors.append(f"update {update}: prompts left out {sorted(missing)}, not drawn for it {sorted(twice)}")
    result.rollouts_lost += missing.total() * group_size
    result.rollouts_doubled += twice.total() * group_size
    for group in line["groups"] if line else ():
        if len(group["rollouts"]) != group_size:
            result.errors.append(f"update {update}: {len(group['rollouts'])} responses to {group['prompt']}")
            result.rollouts_lost += max(0, group_size - len(group["rollouts"]))


def _check_responses(result: AuditResult, history: dict[int, dict[str, Any]]) -> None:
    rollouts = [
        (update, rollout) for update in history for group in history[update]["groups"] for rollout in group["rollouts"]
    ]
    for what, keys in {
        "serial number": [rollout["serial"] for _, rollout in rollouts],
        "content": [rollout["content"] for _, rollout in rollouts if rollout["tokens"] >= _LONG],
    }.items():
        twice = [key for key, count in Counter(keys).items() if count > 1]
        if twice:
            result.rollouts_doubled += len(twice)
            result.errors.append(f"{len(twice)} responses were learned from twice, by their {what}: {twice[:3]}")
    newer = [(update, rollout["version"]) for update, rollout in rollouts if rollout["version"] >= update]
    if newer:
        result.errors.append(f"responses of weights that were not there yet: {newer[:3]}")


def _check_verdicts(result: AuditResult, path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    wrong = [pair for row in rows for pair in row["wrong"]]
    result.judged, result.judged_wrong = sum(row["judged"] for row in rows), len(wrong)
    if wrong:
        kinds = Counter(f"{found} for {wanted}" for found, wanted in wrong)
        result.errors.append(f"programs judged wrong: {dict(kinds)}")


def _check_metrics(result: AuditResult, path: Path) -> None:
    updates = [json.loads(line)["update"] for line in path.read_text(encoding="utf-8").splitlines()]
    if updates != list(range(1, result.updates + 1)):
        result.errors.append(f"metrics.jsonl has the updates {_ranges(updates)}")


def _ranges(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) < 12 else f"{numbers[0]} ... {numbers[-1]} ({len(numbers)})"


def differences(run: Path, reference: Path) -> list[str]:
    """Returns the differences between a run and the uninterrupted one, except for durations."""
    found = []
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        pairs = zip(_rows(run / name), _rows(reference / name), strict=False)
        different = [json.loads(ours)["update"] for ours, theirs in pairs if ours != theirs]
        if different:
            found.append(f"{name} differs from update {different[0]} on")
        elif len(_rows(run / name)) != len(_rows(reference / name)):
            found.append(f"{name} has another number of rows")
    for name in ("model/model.safetensors", "evaluation_responses.jsonl", "rollouts.jsonl"):
        if (run / name).read_bytes() != (reference / name).read_bytes():
            found.append(f"{name} differs")
    return found


def _rows(path: Path) -> list[str]:
    parsed = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.dumps({k: v for k, v in row.items() if not k.startswith("seconds/")}) for row in parsed]
