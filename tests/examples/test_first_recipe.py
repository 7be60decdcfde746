"""The files of the first recipe are those of docs/first_recipe.md."""

import json
from pathlib import Path

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


def test_the_page_shows_the_first_row(tmp_path: Path) -> None:
    """tests/package trains with the files in an empty folder."""
    assert main(["new", str(tmp_path / "mine")]) == 0
    first = (tmp_path / "mine" / "train.jsonl").read_text().splitlines()[0]
    assert first in PAGE and json.loads(first)["answer"] == json.loads(first)["question"].rstrip("=")[::-1]
