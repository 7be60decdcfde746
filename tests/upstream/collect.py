"""Looks the needed names up in the sources inside of wheels, and writes what is there into facts.json.

    pip download --no-deps --python-version 3.12 --only-binary :all: -d WHEELS 'megatron-core==0.19.*'
    python -m tests.upstream.collect WHEELS/*.whl

Nothing is imported or installed, and releases that are in facts.json already stay there if they are not among the
wheels. Run it after a change of needed.py, with the wheels of all releases, and for a new release.
"""

import ast
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from megatron_sspo.files.writing import write_atomically
from tests.upstream.needed import NEEDED

FACTS = Path(__file__).with_name("facts.json")

Found = Mapping[str, list[str] | None]
"""`file:name` -> the names of a function's arguments, [] for anything else, None if it does not exist."""


def main(wheels: list[str]) -> None:
    """Adds what the wheels have to the facts."""
    facts = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    for wheel in wheels:
        distribution, version = Path(wheel).name.split("-")[:2]
        package = distribution.replace("_", "-")
        with zipfile.ZipFile(wheel) as archive:
            facts.setdefault(package, {})[version] = look_up(package, archive)
    ordered = {package: dict(sorted(releases.items())) for package, releases in sorted(facts.items())}
    write_atomically(FACTS, json.dumps(ordered, indent=1) + "\n")


def look_up(package: str, archive: zipfile.ZipFile) -> Found:
    """Returns what a wheel has of the needed names."""
    found: dict[str, list[str] | None] = {}
    for path, names in NEEDED[package].items():
        defined = definitions(_read(archive, path))
        found |= {f"{path}:{name}": defined.get(name) for name in names}
    return found


def _read(archive: zipfile.ZipFile, path: str) -> str:
    return archive.read(path).decode() if path in archive.namelist() else ""


def definitions(source: str) -> Found:
    """Returns what a file defines, and the members of its classes as `Class.member`."""
    return dict(_definitions(ast.parse(source).body, ""))


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, list[str]]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            yield prefix + node.name, [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, []
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((prefix + (alias.asname or alias.name), []) for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((prefix + target.id, []) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If):
            yield from _definitions([*node.orelse, *node.body], prefix)
        elif isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from _definitions([*handled, *node.orelse, *node.body], prefix)  # the try's own names win


if __name__ == "__main__":
    main(sys.argv[1:])
