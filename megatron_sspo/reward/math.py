"""The paper's reward: r = r_answer + r_format, with r_answer = 1 where the answer equals the gold answer."""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

from megatron_sspo.errors import UserError
from megatron_sspo.reward.format import extract_answer, format_reward
from megatron_sspo.reward.pool import DeadlinePool
from megatron_sspo.reward.verify import equivalent, prepare
from megatron_sspo.types import Prompt

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_NUMBER = re.compile(rf"[+-]?(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+|{_INTEGER}/{_INTEGER})")
_LONGEST_NUMBER = 1000  # characters; Python refuses to read integers of more than 4300 digits
_MOST_REMEMBERED = 50_000  # verdicts of math-verify


def reward(num_workers: int = 2, deadline: float = 5.0, exact: bool = False) -> "MathReward":
    """Builds the reward.

    Args:
        num_workers: processes that run math-verify.
        deadline: seconds for one comparison; a slower one counts as wrong.
        exact: compares strings and plain numbers only, with no process. For tasks whose question already is an
            expression of the right value, where "12+34" is no answer to "12+34=".
    """
    if num_workers < 1:
        raise UserError(f"the math reward's num_workers is {num_workers}: it has to be 1 or more")
    if deadline <= 0:
        raise UserError(f"the math reward's deadline is {deadline}: it has to be above 0 seconds")
    return MathReward(None if exact else DeadlinePool(equivalent, num_workers, deadline, False, prepare))


class MathReward:
    """{"answer": I[â = a], "format": r_format}, from the SSPO paper's appendix "Reward and answer verification".

    â is extracted between `<answer>` and `</answer>`; without it the answer part is 0. Equal strings are equal, plain
    numbers are compared exactly, and math-verify settles the rest.
    """

    def __init__(self, pool: DeadlinePool[tuple[str, str], bool] | None) -> None:
        self._pool = pool
        self._remembered: dict[tuple[str, str], bool] = {}  # what math-verify said

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """One dictionary for each pair of prompt and response, in order."""
        answers = [extract_answer(response) for response in responses]
        pairs = [
            (prompt.answer.strip(), answer) if answer else None for prompt, answer in zip(prompts, answers, strict=True)
        ]
        verdicts = self._judge(pair for pair in pairs if pair is not None)
        return [
            {"answer": float(pair is not None and verdicts[pair]), "format": format_reward(response)}
            for pair, response in zip(pairs, responses, strict=True)
        ]

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool is not None:
            self._pool.close()

    def _judge(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], bool]:
        verdicts: dict[tuple[str, str], bool] = {}
        unsettled: list[tuple[str, str]] = []
        for pair in dict.fromkeys(pairs):
            verdict = self._remembered.get(pair)
            if verdict is None:
                verdict = _quick_verdict(*pair)
            if verdict is None:
                unsettled.append(pair)
            else:
                verdicts[pair] = verdict
        settled = self._pool.map(unsettled) if self._pool is not None else [False] * len(unsettled)
        verdicts.update(zip(unsettled, settled, strict=True))
        if len(self._remembered) > _MOST_REMEMBERED:  # a run of weeks must not fill the memory
            self._remembered = {}
        self._remembered.update(zip(unsettled, settled, strict=True))
        return verdicts


def _quick_verdict(gold: str, answer: str) -> bool | None:
    """Equality of strings, or of two plain numbers; None where it takes more than that."""
    if gold == answer:
        return True
    gold_number, answer_number = _plain_number(gold), _plain_number(answer)
    if gold_number is None or answer_number is None:
        return None
    return gold_number == answer_number


def _plain_number(text: str) -> Fraction | None:
    """The value of an integer, a decimal number or a fraction of integers, with or without thousands separators."""
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return None
    numerator, _, denominator = text.replace(",", "").partition("/")
    if not denominator:
        return Fraction(numerator)
    return Fraction(int(numerator), int(denominator)) if int(denominator) else None
