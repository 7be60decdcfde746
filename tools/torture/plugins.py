"""The rewards of the recipes of this folder, named as /path/plugins.py:attribute."""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.reward import code
from megatron_sspo.reward.code import read_checks
from megatron_sspo.types import Prompt

_LIVES = 1_000_000  # the number of serial numbers of a life; a float represents all of them exactly

# A program that passes each row's tests, and one that fails them.
RIGHT, WRONG = "def f(x):\n    return 3 * x + 1\n", "def f(x):\n    return 3 * x - 1\n"
TESTS = ["assert f(1) == 4", "assert [f(x) for x in range(3)] == [1, 4, 7]"]


def _is_odd(response: str) -> bool:
    """Returns whether a response has an odd number of odd digits, which differs in most groups and gives a gradient."""
    return bool(sum(map(response.count, "13579")) % 2)


class Digits:
    """A deterministic reward that needs no other process."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        return [
            {"answer": float(_is_odd(response)), "length": 0.1 * sum(map(str.isalpha, response))}
            for response in responses
        ]

    def close(self) -> None:
        pass


def digits() -> Digits:
    return Digits()


class Programs:
    """A reward that turns each response into a program with a known verdict, and lets the sandbox judge it.

    Each response gets a serial number when it is scored, as two reward parts whose sum is zero. So the number stays
    with the response wherever the run stores it.
    """

    def __init__(self) -> None:
        self._judge = code.reward(concurrency=2)
        self._life = int(os.environ.get("TORTURE_LIFE", "0"))
        self._numbers = itertools.count(1)
        self._verdicts = Path(os.environ["TORTURE_JOURNAL"]).with_name("verdicts.jsonl")

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        attempts = [
            (f"# {response!r}\n{RIGHT if _is_odd(response) else WRONG}", read_checks(prompt))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        found = self._judge.judge(attempts)
        self._note(responses, found)
        return [self._parts(reason) for reason in found]

    def close(self) -> None:
        self._judge.close()

    def metrics(self) -> dict[str, float]:
        return self._judge.metrics()

    def _parts(self, reason: str) -> dict[str, float]:
        serial = float(self._life * _LIVES + next(self._numbers))
        return {"answer": float(reason == "passed"), "serial": serial, "serial_back": -serial}

    def _note(self, responses: Sequence[str], found: Sequence[str]) -> None:
        wrong = [
            [reason, "passed" if _is_odd(response) else "failed"]
            for response, reason in zip(responses, found, strict=True)
            if (reason == "passed") != _is_odd(response) or reason not in ("passed", "failed")
        ]
        with self._verdicts.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"life": self._life, "judged": len(found), "wrong": wrong}) + "\n")


def programs() -> Programs:
    return Programs()
