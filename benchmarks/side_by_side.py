"""Measures variants side by side: each in its own process, in several rounds, with ratios of medians in a table."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MEGABYTE = 1e6


def measure(work: Callable[[], Any], *, repetitions: int) -> dict[str, float]:
    """Returns CPU seconds (the minimum of the repetitions) and the peak of resident memory above the start, in MB."""
    seconds = []
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak to the current value
    before = kilobytes("VmRSS")
    for _ in range(repetitions):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds), "megabytes": (kilobytes("VmHWM") - before) * 1024 / MEGABYTE}


def run_all(
    script: str, variants: Sequence[str], arguments: Sequence[str], *, rounds: int
) -> dict[str, dict[str, Any]]:
    """Runs `script --variant NAME` for every variant in turn, `rounds` times, and returns the medians.

    A variant that fails is left out, and the reason is printed.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for number in range(rounds):
        for variant in variants:
            print(f"round {number + 1}/{rounds}  {variant}", end="\x1b[K\r", flush=True, file=sys.stderr)
            command = [sys.executable, "-W", "ignore", script, "--variant", variant, *arguments]
            done = subprocess.run(
                command, env=environment, capture_output=True, encoding="utf-8", timeout=900, check=False
            )
            if done.returncode:
                if number == 0:
                    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                    print(f"{variant}: left out ({reason})\x1b[K")
                continue
            found.setdefault(variant, []).append(json.loads(done.stdout.splitlines()[-1]))
    print("\x1b[K", end="", file=sys.stderr)
    medians = {}
    for variant, results in found.items():
        medians[variant] = {key: statistics.median(result[key] for result in results) for key in results[0]}
    return medians


def print_table(title: str, results: Mapping[str, Mapping[str, float]], baseline: str) -> None:
    """Prints a row per variant: time relative to `baseline`, seconds, memory, and its other numbers."""
    others = [key for key in next(iter(results.values())) if key not in ("seconds", "megabytes")]
    print(f"\n{title}")
    print(f"{'':34}{'time':>8}{'seconds':>10}{'MB':>8}" + "".join(f"{key:>24}" for key in others))
    for variant, row in results.items():
        ratio = row["seconds"] / results[baseline]["seconds"] if baseline in results else float("nan")
        cells = "".join(f"{row[key]:>24.1e}" for key in others)
        print(f"{variant:34}{ratio:>8.2f}{row['seconds']:>10.3f}{row['megabytes']:>8.0f}{cells}")


def kilobytes(name: str) -> int:
    """Returns a number of /proc/self/status, such as VmRSS or VmHWM."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{name}:")[1].split()[0])
