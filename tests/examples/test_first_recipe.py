"""The first recipe of docs/first_recipe.md runs as the page says, with fewer updates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.project.new import TEMPLATE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first_recipe.md").read_text(encoding="utf-8")


def test_the_page_shows_the_files_code() -> None:
    code = "".join((TEMPLATE / name).read_text(encoding="utf-8") for name in ("recipe.py", "reward.py"))
    shown = [line.strip() for block in PAGE.split("```python\n")[1:] for line in block.partition("```")[0].splitlines()]
    known = {line.strip() for line in code.splitlines()} | {"def close(self) -> None: ..."}
    assert len(shown) > 30
    assert [line for line in shown if line not in known] == []


@pytest.mark.slow
def test_it_trains_in_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert main(["new", str(folder)]) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = (folder / "train.jsonl").read_text().splitlines()[0]
    assert first in PAGE and json.loads(first)["answer"] == json.loads(first)["question"].rstrip("=")[::-1]
    run(
        "-m",
        "megatron_sspo",
        "train",
        "recipe.py",
        "--set",
        "num_updates=2",
        "--set",
        "warm_start.updates=2",
        "--profile",
        "2",
    )
    rows = (folder / "runs" / "reverse" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["update"] for row in rows] == [1, 2]
    evaluations = (folder / "runs" / "reverse" / "evaluations.jsonl").read_text().splitlines()
    assert "held_out/pass@1" in json.loads(evaluations[-1]) and "held_out/digits" in json.loads(evaluations[-1])
    assert [path.name for path in (folder / "runs" / "reverse" / "profile").iterdir()] == ["updates-2-2-rank-0.json.gz"]
    run("-m", "megatron_sspo", "plot", "runs/reverse")
    assert (folder / "runs" / "reverse" / "model" / "config.json").exists()
