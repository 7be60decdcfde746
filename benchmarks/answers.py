"""Compares the math reward's verdicts and speed with math-verify alone, side by side.

    python benchmarks/answers.py                  # 5 rounds
    python benchmarks/answers.py --rounds 1 --pairs my_pairs.jsonl

The pairs are those of packages/answers/tests/answer_*.jsonl, each with a verdict by hand.
"agrees" is the share of verdicts that are those by hand; "false accepts" is the share of wrong answers that are
accepted. math-verify, of the version that this project installs, reads the gold answer in `$...$` and the answer in
`\\boxed{}`, with its own defaults; it has no option for decimal commas.

Speeds are answers per second of processor time in one process, a new one for each round and variant, so that no cache
helps. "GSM8K" are numbers in the forms in which models state them. "hard" are formulas of benchmarks/math_reward.py and
the pairs of the files that are not decided by comparing numbers, words and lists. The printed numbers are medians of
the rounds, also that of the slowest single comparison.
"""

import argparse
import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from math_reward import latex, numbers
from side_by_side import run_all

from megatron_sspo.reward.format import extract_answer
from sspo_answers.answer import read_decimal_commas
from sspo_answers.compare import compare
from sspo_answers.verify import is_equivalent, prepare

_FILES = ("answer_kinds.jsonl", "answer_pairs.jsonl")
_VARIANTS = ("ours", "math-verify")

Pair = tuple[str, str]  # gold answer and answer


def read_pairs(paths: list[str]) -> list[dict[str, Any]]:
    """Returns rows with "gold", "answer", "kind" and "right"; a whole response without an answer has the answer ""."""
    rows = [json.loads(line) for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        if "answer" not in row:
            response = row["response"]
            is_whole = "<answer>" in response or "</think>" in response
            row["answer"] = (extract_answer(response) or "") if is_whole else response
    return rows


def judge_by_math_verify(pair: Pair) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(f"${pair[0]}$"), parse(rf"\boxed{{{pair[1]}}}")))


def judges(variant: str) -> Callable[[Pair], bool]:
    logging.disable(logging.CRITICAL)
    judge = is_equivalent if variant == "ours" else judge_by_math_verify
    if variant == "ours":
        prepare()
    judge((r"\frac{z}{3}", "z/3"))  # imports
    return judge


def measure(variant: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a round's speeds, and the shares by kind as "agrees KIND" and "accepts KIND"."""
    judge = judges(variant)
    plain = numbers(random.Random(0), 2000)
    started = time.process_time()
    for pair in plain:
        judge(pair)
    found: dict[str, Any] = {"GSM8K": len(plain) / (time.process_time() - started)}
    hard = [(row["gold"], row["answer"]) for row in rows if row["kind"] not in ("comma", "hostile", "response")]
    hard = [pair for pair in hard if compare(*pair) is None] + latex(random.Random(0), 100)
    seconds: list[float] = []
    for pair in hard:
        started = time.process_time()
        judge(pair)
        seconds.append(time.process_time() - started)
    found.update({"hard": len(hard) / sum(seconds), "median ms": 1000 * median(seconds), "slowest s": max(seconds)})
    for kind in dict.fromkeys(row["kind"] for row in rows):
        found |= shares(judge, kind, [row for row in rows if row["kind"] == kind], variant == "ours")
    return found


def shares(judge: Callable[[Pair], bool], kind: str, rows: list[dict[str, Any]], has_options: bool) -> dict[str, float]:
    right = accepted = wrong = 0
    for row in rows:
        pair = row["gold"], row["answer"]
        if has_options and row.get("decimal_comma"):
            pair = read_decimal_commas(pair[0]), read_decimal_commas(pair[1])
        verdict = bool(pair[1]) and judge(pair)
        right += verdict == row["right"]
        wrong += not row["right"]
        accepted += verdict and not row["right"]
    return {f"agrees {kind}": right / len(rows), f"accepts {kind}": accepted / max(1, wrong)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tests = Path(__file__).parents[1] / "packages" / "answers" / "tests"
    parser.add_argument("--pairs", nargs="+", default=[str(tests / name) for name in _FILES], help="files of pairs")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--variant", choices=_VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = read_pairs(options.pairs)
    if options.variant:
        print(json.dumps(measure(options.variant, rows)))
        return
    results = run_all(__file__, _VARIANTS, ["--pairs", *options.pairs], rounds=options.rounds)
    print(f"{'':12}{'':>7}{'agrees':^24}{'false accepts':^24}")
    print(f"{'kind':12}{'pairs':>7}" + "".join(f"{name:>12}" for name in _VARIANTS * 2))
    for kind in dict.fromkeys(row["kind"] for row in rows):
        count = sum(row["kind"] == kind for row in rows)
        cells = [results[name][f"{share} {kind}"] for share in ("agrees", "accepts") for name in _VARIANTS]
        print(f"{kind:12}{count:>7}" + "".join(f"{cell:>12.3f}" for cell in cells))
    for name, unit in (("GSM8K", "a second"), ("hard", "a second"), ("median ms", "of hard"), ("slowest s", "of hard")):
        cells = [results[variant][name] for variant in _VARIANTS]
        print(f"{name:12}{unit:>10}" + "".join(f"{cell:>12.4g}" for cell in cells))


if __name__ == "__main__":
    main()
