"""Text is UTF-8 in every locale: every call that opens a text file names its encoding."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LATER = ("sspo_sandbox/inside/judge.py",)
FILES = [
    file
    for folder in ("megatron_sspo", "tools", "benchmarks")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if str(file.relative_to(ROOT / folder)) not in LATER
]
# their `open` does not open text files
NO_FILES = ("os", "tarfile", "zipfile", "archive", "self", "environment", "sessions")


def _unnamed(tree: ast.AST) -> Iterator[int]:
    """Yields the lines of calls without an encoding."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        function, names = call.func, {keyword.arg for keyword in call.keywords}
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in ("read_text", "write_text", "TextIOWrapper") and isinstance(function, ast.Attribute):
            opens = True
        elif name in ("open", "fdopen"):
            owner = function.value if isinstance(function, ast.Attribute) else None
            other = name == "open" and getattr(owner, "attr", getattr(owner, "id", "")).lstrip("_") in NO_FILES
            place = 0 if owner is not None and name == "open" else 1
            modes = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "mode")]
            opens = not other and not any(isinstance(m, ast.Constant) and "b" in str(m.value) for m in modes)
        else:
            opens = any(k.arg == "text" and getattr(k.value, "value", None) is True for k in call.keywords)
        if opens and "encoding" not in names:
            yield call.lineno


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_text_file_names_its_encoding(file: Path) -> None:
    assert list(_unnamed(ast.parse(file.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "line",
    ["p.read_text()", "p.write_text(t)", "open(p)", "open(p, 'w')", "p.open('a')", "run(c, text=True)", "os.fdopen(3)"],
)
def test_the_rule_finds_what_it_is_for(line: str) -> None:
    assert list(_unnamed(ast.parse(line))) == [1]
    assert list(_unnamed(ast.parse(line.replace("()", "(0)")[:-1] + ", encoding='utf-8')"))) == []


@pytest.mark.parametrize(
    "line", ["os.open(p, 0)", "os.fdopen(3, 'rb')", "open(p, 'rb')", "p.open('wb')", "p.open(mode='rb')", "run(c)"]
)
def test_bytes_have_none(line: str) -> None:
    assert list(_unnamed(ast.parse(line))) == []
