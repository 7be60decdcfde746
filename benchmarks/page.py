"""Runs the benchmarks and writes docs/benchmarks.md: `make benchmark`.

    python benchmarks/page.py                    # all, one after the other; an hour on an idle machine
    python benchmarks/page.py --only growth,packing
    python benchmarks/page.py --only ""          # writes the page again from the results that are there

The page is page.md with each command replaced by what it printed. The results are kept in docs/benchmarks.json with
their date and processor, so that one benchmark can be repeated alone. A command that fails keeps its earlier result.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.files.writing import write_atomically

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).with_name("page.md")
PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.json"
_COMMAND = re.compile(r"^```measured\n(?P<line>.+)\n```$", re.MULTILINE)

Results = dict[str, dict[str, Any]]  # command line -> "output", "date", "processor"


def main() -> int:
    """Returns 1 if a command failed."""
    template = TEMPLATE.read_text(encoding="utf-8")
    lines = [found["line"] for found in _COMMAND.finditer(template)]
    names = {line: Path(shlex.split(line)[1]).stem for line in lines}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(dict.fromkeys(names.values())), metavar="NAME,...")
    chosen = [name for name in parser.parse_args().only.split(",") if name]
    if unknown := set(chosen) - set(names.values()):
        parser.error(
            f"there is no benchmark {sorted(unknown)[0]!r} on the page: {', '.join(dict.fromkeys(names.values()))}"
        )
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results = {line: results[line] for line in lines if line in results}
    failed = False
    for line in lines:
        if names[line] in chosen:
            found = run(line)
            failed |= found is None
            if found:
                results[line] = found
                write_atomically(RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    write_atomically(PAGE, render(template, results))
    print(PAGE)
    return int(failed)


def run(line: str) -> dict[str, Any] | None:
    """Runs a command line and shows what it prints. Returns the result, or None if it fails."""
    begun = time.monotonic()
    print(f"\n$ {line}", flush=True)
    _, *arguments = shlex.split(line)  # `python` is the interpreter of this program
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    output = ""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        for printed in process.stdout:
            print(printed, end="", flush=True)
            output += printed
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    if process.returncode:
        print(f"{line} failed; its earlier result is kept", file=sys.stderr)
        return None
    return {"output": output.strip(), "date": time.strftime("%Y-%m-%d"), "processor": processor()}


def render(template: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page: the template with the results in place of their commands."""

    def result(found: re.Match[str]) -> str:
        line = found["line"]
        if line not in results:
            return f"`{line}`: not measured."
        one = results[line]
        output = one["output"]
        text = output if output.startswith("|") else f"```text\n{output}\n```"
        return f"`{line}` ({one['processor']}, {one['date']}):\n\n{text}"

    return _COMMAND.sub(result, template)


def processor() -> str:
    """Returns the name of the processor and the number of its cores that this process may use."""
    name = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    wide = " with AVX-512" if "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else ""
    return f"{name[1] if name else platform.machine()}{wide}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    sys.exit(main())
