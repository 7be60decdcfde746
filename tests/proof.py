"""Measures what a change of the structure may not change, and what it is to make smaller, and writes both as JSON.

    python -m tests.proof docs/proof/after.json
    python -m tests.proof docs/proof/after.json --only sizes closures

Each part is a function of this file; the parts that a call does not name keep the numbers that the file has. Vectors of
objectives, conversion and the judges have tests and benchmarks of their own (benchmarks/judge.py, answers.py).
"""

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.rows import sets

HERE = Path(__file__).parents[1]
PACKAGE = HERE / "megatron_sspo"
LIBRARIES = HERE / "packages"

PARTS: dict[str, Callable[[], dict[str, Any]]] = {}


def part(measure: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    PARTS[measure.__name__] = measure
    return measure


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def sources(folder: Path) -> list[Path]:
    left_out = {"tests", "build"}
    return sorted(path for path in folder.rglob("*.py") if not left_out & {*path.relative_to(HERE).parts[1:]})


@cache
def modules() -> dict[str, Path]:
    """Returns every module of the trainer and of the libraries beside it, by its dotted name."""
    roots = [HERE, *(path for path in LIBRARIES.glob("*") if path.is_dir())]
    found = {}
    for root in roots:
        for path in root.glob("*/__init__.py"):
            if path.parent.name != "tests":
                for file in path.parent.rglob("*.py"):
                    name = ".".join(file.relative_to(root).with_suffix("").parts)
                    found[name.removesuffix(".__init__")] = file
    return found


def imported(path: Path) -> Iterator[str]:
    """Yields what a file imports when it is imported: not inside of functions, nor for type checkers alone."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            waiting += ast.iter_child_nodes(node)


def closure(module: str) -> set[str]:
    """Returns the modules of this repository that are loaded with one of them."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        name = name if name in modules() else name.rpartition(".")[0]
        if name in modules() and name not in found:
            found.add(name)
            waiting += [*imported(modules()[name]), name.rpartition(".")[0]]
    return found


@part
def sizes() -> dict[str, Any]:
    package = sources(PACKAGE)
    folders: Counter[str] = Counter()
    for path in package:
        parts = path.relative_to(PACKAGE).parts
        folders[parts[0] if len(parts) > 1 else "(root)"] += lines([path])
    raised = [
        node
        for path in package
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "UserError"
    ]
    libraries = {path.name: lines(sources(path)) for path in sorted(LIBRARIES.glob("*")) if path.is_dir()}
    tests = [*(HERE / "tests").rglob("*.py"), *LIBRARIES.glob("*/tests/**/*.py")]
    return {
        "package": lines(package),
        "libraries": libraries,
        "all libraries": sum(libraries.values()),
        "tests": lines(tests),
        "folders": dict(sorted(folders.items())),
        "UserError": len(raised),
    }


@part
def closures() -> dict[str, Any]:
    plugin = next(
        f"megatron_sspo.policy.{name}" for name in ("plugin", "own_loop") if (PACKAGE / f"policy/{name}.py").exists()
    )
    found = {"loop": closure("megatron_sspo.loop"), "plugin": closure(plugin)}
    return {name: {"modules": len(names), "lines": lines(modules()[n] for n in names)} for name, names in found.items()}


@part
def quickstart() -> dict[str, Any]:
    """The metrics of the quickstart, without times, for three seeds: the SHA-256 of all rows, and the last pass@1."""
    found = {}
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            values = sets(f"seed={seed}", "name=proof", f"output={folder}")
            command = [sys.executable, "-m", "megatron_sspo", "train", "examples/tiny_moe.py", *values]
            subprocess.run(
                command, cwd=HERE, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True
            )
            [rows] = Path(folder).glob("proof/metrics.jsonl")
            kept = [
                {key: value for key, value in json.loads(line).items() if not key.startswith("seconds/")}
                for line in rows.read_text(encoding="utf-8").splitlines()
            ]
            evaluations = Path(folder, "proof", "evaluations.jsonl").read_text(encoding="utf-8")
        digest = hashlib.sha256("\n".join(json.dumps(row, sort_keys=True) for row in kept).encode()).hexdigest()
        by_key = {
            key: hashlib.sha256(json.dumps([row.get(key) for row in kept]).encode()).hexdigest()[:16]
            for key in kept[-1]
        }
        found[f"seed {seed}"] = {"rows": len(kept), "sha256": digest, "keys": by_key}
        found[f"seed {seed}"]["last evaluation"] = json.loads(evaluations.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    args = parser.parse_args()
    found = json.loads(args.file.read_text(encoding="utf-8")) if args.file.exists() else {}
    for name in args.only:
        started = time.perf_counter()
        found[name] = PARTS[name]()
        args.file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{time.perf_counter() - started:7.1f} s  {name}: {json.dumps(found[name])[:300]}", flush=True)


if __name__ == "__main__":
    main()
