"""Writes the findings of all runs as Markdown and as JSON."""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.torture.faults import Kind
from tools.torture.memory import Flatness, Sample, flatness, largest_by_hour
from tools.torture.record import FaultRecord, PhaseRecord

_FLAT = 0.03
_TOO_SHORT = 900.0  # if the runs take fewer seconds, memory growth is shown but is not a failure


@dataclass
class Findings:
    """All records of the program."""

    command: str
    seconds: float
    faults: Sequence[FaultRecord]
    phases: Sequence[PhaseRecord]
    samples: Sequence[Sample]
    not_run: Sequence[Kind]

    def failures(self) -> list[str]:
        """Returns a line for each failure."""
        found = []
        for fault in self.faults:
            if fault.outcome in ("hang", "not recovered"):
                found.append(f"fault {fault.number}, {fault.kind}: {fault.outcome}")
            if fault.processes_left:
                found.append(f"fault {fault.number}, {fault.kind}: processes left: {fault.processes_left}")
        for phase in self.phases:
            where = f"run {phase.number} ({phase.kind})"
            found += [f"{where}: {phase.error}"] if phase.error else []
            found += [f"{where}: {error}" for error in (phase.audit.errors if phase.audit else ())]
            found += [f"{where}: {difference}" for difference in phase.differences]
            found += [f"{where}: file left: {path}" for path in phase.files_left]
            found += [f"{where}: process left: {line}" for line in phase.processes_left]
        if self.seconds >= _TOO_SHORT:
            found += [
                f"memory of {one.role} ({one.phase}): last quarter {one.ratio:.3f} of the second"
                for one in flatness(self.samples)
                if one.ratio > 1 + _FLAT
            ]
        return found

    def write(self, folder: Path) -> Path:
        """Writes report.md and report.json; returns the path of report.md."""
        content = {
            "command": self.command,
            "seconds": self.seconds,
            "faults": [asdict(fault) for fault in self.faults],
            "phases": [asdict(phase) for phase in self.phases],
            "memory": [asdict(one) | {"ratio": one.ratio} for one in flatness(self.samples)],
            "not_run": [kind.name for kind in self.not_run],
            "failures": self.failures(),
        }
        (folder / "report.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        path = folder / "report.md"
        path.write_text(self.markdown(), encoding="utf-8")
        return path

    def markdown(self) -> str:
        """Returns the tables and the failures in Markdown."""
        failures = self.failures()
        parts = [
            f"`{self.command}`: {sum(fault.kind != 'none' for fault in self.faults)} faults in {len(self.phases)} runs "
            f"of {sum(phase.attempts for phase in self.phases)} attempts, {self.seconds:.0f} s",
            _of_kinds(self.faults, self.not_run),
            _of_phases(self.phases),
            _of_memory(self.samples),
            "\n".join(f"* {failure}" for failure in failures) or "Nothing hung, nothing was lost, nothing was left.",
        ]
        return "\n\n".join(parts) + "\n"


def _of_kinds(faults: Sequence[FaultRecord], not_run: Sequence[Kind]) -> str:
    by_kind: dict[str, list[FaultRecord]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    rows = []
    for kind, some in sorted(by_kind.items()):
        seconds = [fault.seconds for fault in some]
        rows.append(_kind_row(kind, some, f"{statistics.median(seconds):.0f} / {max(seconds):.0f}"))
    rows.append(_kind_row("**all**", faults, ""))
    rows += [[kind.name, "not run: this machine cannot", "", "", "", "", "", "", ""] for kind in not_run]
    head = "fault|times|went on by itself|resumed|hung|updates lost|s, median / longest|processes left|tracebacks"
    return table(head.split("|"), rows)


def _kind_row(kind: str, faults: Sequence[FaultRecord], seconds: str) -> list[object]:
    return [
        kind,
        len(faults),
        sum(fault.outcome == "went on" for fault in faults),
        sum(fault.outcome == "resumed" for fault in faults),
        sum(fault.outcome in ("hang", "not recovered") for fault in faults),
        sum(fault.updates_lost for fault in faults),
        seconds,
        sum(len(fault.processes_left) for fault in faults),
        sum(fault.tracebacks for fault in faults),
    ]


def _of_phases(phases: Sequence[PhaseRecord]) -> str:
    rows = []
    for phase in phases:
        audit = phase.audit
        rows.append(
            [
                f"{phase.number} {phase.kind}",
                phase.attempts,
                phase.num_updates,
                *(
                    [
                        audit.updates_lost,
                        audit.rollouts_lost,
                        audit.rollouts_doubled,
                        f"{audit.judged_wrong} of {audit.judged}",
                    ]
                    if audit
                    else ["not complete"] * 4
                ),
                ("no" if phase.differences else "yes") if phase.kind == "embedded" and audit else "",
                len(phase.files_left),
                f"{phase.seconds:.0f}",
            ]
        )
    head = "run|attempts|updates|made again|rollouts lost|learned from twice|judged wrong|equal to the bit|files left|s"
    return table(head.split("|"), rows)


def _of_memory(samples: Sequence[Sample]) -> str:
    found: Sequence[Flatness] = flatness(samples)
    rows = [
        [
            f"{one.role} ({one.phase})",
            one.num_processes,
            one.num_samples,
            f"{one.largest_resident / 1e6:.0f}",
            f"{one.second_quarter / 1e6:.1f}",
            f"{one.last_quarter / 1e6:.1f}",
            f"{one.ratio:.3f}",
        ]
        for one in found
    ]
    head = "process|of them|samples|largest resident, MB|second quarter, MB|last quarter, MB|ratio"
    hours = largest_by_hour(samples)
    by_hour = "; ".join(f"hour {hour + 1}, {role}: {size / 1e6:.0f} MB" for (hour, role), size in hours.items())
    return table(head.split("|"), rows) + f"\n\nLargest resident memory of one process, by hour: {by_hour}."


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
