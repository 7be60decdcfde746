"""Checks that each docstring begins with a verb or a noun: `python -m tools.docstrings [FOLDER ...]`."""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_FIRST_WORDS = {"as", "at", "by", "from", "how", "in", "of", "on", "that", "these", "this", "those", "to", "what"}
_FIRST_WORDS |= {"when", "where", "whether", "which", "who", "whose", "with", "it", "its", "they"}
_FOLDERS = ("megatron_sspo", "tools", "tests", "benchmarks", "examples", "sglang_cpu", "slurm", "docs", "packages")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main(arguments: Sequence[str]) -> int:
    """Prints each docstring that begins with a preposition, a pronoun or a question word; returns 1 if there is one."""
    paths = [path for name in arguments or _FOLDERS for path in sorted(Path(name).rglob("*.py"))]
    found = [line for path in paths if "build" not in path.parts for line in refused(path)]
    print("\n".join(found) or "every docstring begins with a verb or a noun")
    return 1 if found else 0


def refused(path: Path) -> Iterator[str]:
    """Yields a line `path:line: docstring` for each docstring of a file that begins with a refused word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, _DOCUMENTED):
            continue
        text = ast.get_docstring(node) or "Nothing"
        if text.split()[0].strip("`,.:;").lower() in _FIRST_WORDS:
            yield f"{path}:{node.body[0].lineno}: {text.splitlines()[0]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
