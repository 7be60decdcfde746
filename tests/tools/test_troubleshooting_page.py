"""Messages in docs/troubleshooting.md are messages of the code."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = [
    message for line in re.findall(r"^### (.+)$", PAGE, re.MULTILINE) for message in re.findall(r"`([^`]+)`", line)
]


@cache
def texts() -> list[str]:
    """Returns the text of every string in the package, with … for each value of an f-string."""
    found = []
    for path in (ROOT / "megatron_sspo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_there_are_twenty() -> None:
    assert len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message: str) -> None:
    pieces = [piece for piece in re.split("…", message) if len(piece.strip(" :;,.()")) > 3]
    assert pieces
    for piece in pieces:
        assert any(piece.strip() in text for text in texts()), piece
