"""Adds up the reports of several runs of `make torture` in two tables, as in docs/torture.md.

python -m tools.torture.summary runs/torture-0 runs/torture-1 runs/torture-2
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.torture.memory import Flatness, Sample, flatness
from tools.torture.report import table

_KINDS = ("kind", "times", "went on by itself", "resumed", "hung", "longest, s")
_RUNS = (
    *("command", "s", "faults", "runs", "attempts", "hung", "updates made again", "rollouts lost or doubled"),
    *("verdicts wrong", "equal to the bit", "left behind", "memory, last ÷ second quarter"),
)


def summary(reports: Sequence[Mapping[str, Any]], memories: Sequence[Sequence[Flatness]]) -> str:
    """Returns a table of the reports, and a table of the kinds of faults in all of them, in Markdown."""
    rows = [_run_row(report, memory) for report, memory in zip(reports, memories, strict=True)]
    faults = [fault for report in reports for fault in report["faults"] if fault["kind"] != "none"]
    kinds = [_kind_row(kind, faults) for kind in sorted({fault["kind"] for fault in faults})]
    every = _kind_row("**all**", [{**fault, "kind": "**all**"} for fault in faults])
    return f"{table(_RUNS, rows)}\n\n{table(_KINDS, [*kinds, every])}"


def _run_row(report: Mapping[str, Any], memory: Sequence[Flatness]) -> list[object]:
    faults = [fault for fault in report["faults"] if fault["kind"] != "none"]
    phases, audits = report["phases"], [phase["audit"] for phase in report["phases"]]
    embedded = [phase for phase in phases if phase["kind"] == "embedded"]
    left = [*(x for phase in phases for x in (*phase["files_left"], *phase["processes_left"]))]
    left += [process for fault in faults for process in fault["processes_left"]]
    ratios = [one.ratio for one in memory]
    return [
        f"`{report['command']}`",
        round(report["seconds"]),
        len(faults),
        len(phases),
        sum(phase["attempts"] for phase in phases),
        sum(fault["outcome"] in ("hang", "not recovered") for fault in faults),
        sum(audit["updates_lost"] for audit in audits),
        sum(audit["rollouts_lost"] + audit["rollouts_doubled"] for audit in audits),
        f"{sum(audit['judged_wrong'] for audit in audits)} of {sum(audit['judged'] for audit in audits)}",
        f"{sum(not phase['differences'] for phase in embedded)} of {len(embedded)}",
        len(left),
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    ]


def _kind_row(kind: str, faults: Sequence[Mapping[str, Any]]) -> list[object]:
    found = [fault for fault in faults if fault["kind"] == kind]
    outcomes = [fault["outcome"] for fault in found]
    by_itself, resumed = outcomes.count("went on"), outcomes.count("resumed")
    longest = max(fault["seconds"] for fault in found)
    return [kind, len(found), by_itself, resumed, len(found) - by_itself - resumed, round(longest)]


def _memory(folder: Path) -> list[Flatness]:
    lines = (folder / "memory.jsonl").read_text(encoding="utf-8").splitlines()
    return flatness([Sample(**json.loads(line)) for line in lines])


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:]]
    reports = [json.loads((folder / "report.json").read_text(encoding="utf-8")) for folder in folders]
    print(summary(reports, [_memory(folder) for folder in folders]))
