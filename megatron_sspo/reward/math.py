"""The paper's reward: r = r_answer + r_format, with r_answer = 1 if the answer equals the gold answer."""

import re
from collections.abc import Iterable, Sequence

from megatron_sspo.config.kinds import Count, Positive
from megatron_sspo.errors import UserError
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.reward.format import AnswerIn, find_answer, format_reward
from megatron_sspo.types import Prompt
from sspo_answers.answer import read_decimal_commas
from sspo_answers.compare import try_compare
from sspo_answers.number import read_number
from sspo_answers.pool import DeadlinePool
from sspo_answers.verify import is_equivalent, prepare

_PLAIN_NUMBER = re.compile(r"[-+0-9.,/]+")
_MAX_CACHED = 50_000  # the most verdicts of the processes that are cached


def reward(
    num_workers: Count = 2,
    deadline: Positive = 5.0,
    exact: bool = False,
    decimal_comma: bool = False,
    answer_in: AnswerIn = "tags",
) -> "MathReward":
    """Builds the reward.

    Args:
        num_workers: the number of processes that compare formulas.
        deadline: seconds for one comparison; a slower one counts as wrong.
        exact: whether to compare only strings and numbers in digits, without processes. It is for tasks in which any
            other form is wrong: if "2^{10}" is the question, it is not an answer.
        decimal_comma: whether a comma is the decimal sign and points group thousands, in gold answers and answers.
        answer_in: where â is: in the tags of the paper's format, in the last box, after "####", or the last number.
            Without the tags there is no part "format".
    """
    pool = None if exact else DeadlinePool(is_equivalent, num_workers, deadline, False, prepare, mark_progress)
    return MathReward(pool, decimal_comma, answer_in)


def check_prompt(prompt: Prompt) -> None:
    """Raises UserError if a prompt has no gold answer."""
    if not prompt.answer.strip():
        raise UserError(
            f"prompt {prompt.id!r} has no gold answer, so every response would be wrong: name its field by the option "
            "answer of prompts, or choose another reward"
        )


class MathReward:
    """{"answer": I[â = a], "format": r_format}, from the SSPO paper's appendix "Reward and answer verification".

    â is the text between `<answer>` and `</answer>`; without it the answer part is 0. If a row has several accepted
    answers, one of them has to be equal. This process compares numbers, words and lists (`compare`). Formulas are
    compared in processes that are killed at the deadline; their verdicts are cached.

    Args:
        pool: the processes; None if only strings and numbers in digits are compared.
        decimal_comma: whether a comma is the decimal sign.
        answer_in: where â is: see `find_answer`.
    """

    def __init__(
        self,
        pool: DeadlinePool[tuple[str, str], bool] | None,
        decimal_comma: bool = False,
        answer_in: AnswerIn = "tags",
    ) -> None:
        self._pool = pool
        self._answer_in: AnswerIn = answer_in
        self._decimal_comma = decimal_comma
        self._cache: dict[tuple[str, str], bool] = {}  # verdicts of the processes

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response, in order."""
        read = read_decimal_commas if self._decimal_comma else str
        responses = [prompt.prefill + response for prompt, response in zip(prompts, responses, strict=True)]
        answers = [find_answer(response, self._answer_in) for response in responses]
        pairs = [
            [(read(gold.strip()), read(answer)) for gold in prompt.metadata.get("accepted_answers") or [prompt.answer]]
            if answer
            else []
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        verdicts = self._compare_pairs(pair for some in pairs for pair in some)
        return [
            {"answer": float(any(verdicts[pair] for pair in some)), **self._format(response)}
            for some, response in zip(pairs, responses, strict=True)
        ]

    def _format(self, response: str) -> dict[str, float]:
        return {"format": format_reward(response)} if self._answer_in == "tags" else {}

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool is not None:
            self._pool.close()

    def _compare_pairs(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], bool]:
        verdicts: dict[tuple[str, str], bool] = {}
        undecided: list[tuple[str, str]] = []
        for pair in dict.fromkeys(pairs):
            verdict = self._cache.get(pair)
            if verdict is None:
                verdict = try_compare(*pair) if self._pool is not None else _is_exactly_equal(*pair)
            if verdict is None:
                undecided.append(pair)
            else:
                verdicts[pair] = verdict
        decided = self._pool.map(undecided) if self._pool is not None else [False] * len(undecided)
        verdicts.update(zip(undecided, decided, strict=True))
        if len(self._cache) > _MAX_CACHED:  # a long run must not fill the memory
            self._cache = {}
        self._cache.update(zip(undecided, decided, strict=True))
        return verdicts


def _is_exactly_equal(gold: str, answer: str) -> bool:
    """Returns whether two strings are equal, or two numbers that are written in digits alone."""
    if gold == answer:
        return True
    if not (_PLAIN_NUMBER.fullmatch(gold) and _PLAIN_NUMBER.fullmatch(answer)):
        return False
    numbers = read_number(gold), read_number(answer)
    return numbers[0] is not None and numbers[0] == numbers[1]
