"""Counts right answers that the math reward still accepts after one piece of each was changed at random.

    python benchmarks/changed_answers.py            # the share of accepted ones, and each of them, to be read
    python benchmarks/changed_answers.py --each 5   # five changes of every answer instead of one

The answers are the right ones of packages/answers/tests/answer_*.jsonl that the reward
accepts and that have something to change: a digit becomes another digit, a sign another sign, a bracket its like of
another kind, a function another function. A change may leave an answer right (0/2 for 0/3), so the list has to be read.
"""

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path

from answers import judges, read_pairs

_PIECE = re.compile(r"\\(?:sin|cos|tan|ln|log|sqrt|pi)(?![a-z])|[0-9]|(?<=[\d)}a-z ])[-+*/^](?=[\d({a-z\\ ])|[()\[\]]")
_ALIKE: Sequence[Sequence[str]] = (
    "0123456789",
    "+-*/^",
    "([",
    ")]",
    (r"\sin", r"\cos", r"\tan"),
    (r"\ln", r"\sqrt", r"\log"),
    (r"\pi", "e"),
)


def change(answer: str, drawn: random.Random) -> str | None:
    """Returns the answer with one piece changed; None if there is nothing to change."""
    pieces = list(_PIECE.finditer(answer))
    if not pieces:
        return None
    piece = drawn.choice(pieces)
    alike = next(kind for kind in _ALIKE if piece[0] in kind)
    other = drawn.choice([one for one in alike if one != piece[0]])
    return answer[: piece.start()] + other + answer[piece.end() :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=1, help="changes of an answer (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tests = Path(__file__).parents[1] / "packages" / "answers" / "tests"
    rows = read_pairs([str(tests / name) for name in ("answer_kinds.jsonl", "answer_pairs.jsonl")])
    judge, drawn = judges("ours"), random.Random(options.seed)
    accepted, count = [], 0
    for row in rows:
        if not row["right"] or row.get("decimal_comma") or not judge((row["gold"], row["answer"])):
            continue
        for _ in range(options.each):
            changed = change(row["answer"], drawn)
            if changed is not None:
                count += 1
                if judge((row["gold"], changed)):
                    accepted.append((row["gold"], row["answer"], changed))
    for gold, answer, changed in accepted:
        print(f"{gold}   {answer}  ->  {changed}")
    print(f"{len(accepted)} of {count} changed answers are accepted: {len(accepted) / count:.3%}")


if __name__ == "__main__":
    main()
