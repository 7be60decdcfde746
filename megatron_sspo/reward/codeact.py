"""Rewards solutions from episodes in an environment (`environment/codeact.py`): r = r_answer + r_format."""

import re
from collections.abc import Sequence

from megatron_sspo.reward import code
from megatron_sspo.reward.format import extract_answer, format_reward
from megatron_sspo.types import Prompt
from sspo_answers.answer import clean, split_equation, split_list
from sspo_answers.compare import OPPOSITES, try_compare
from sspo_answers.number import read_number

_TAG = "solution"
# What only a printout has, and no number or list of numbers: several lines, 007, 1.100.200
_PRINTOUT = re.compile(r"\n|#|(?<![0-9.,])0[0-9]|[0-9]\.[0-9]+\.[0-9]")


class CodeActReward(code.CodeReward):
    """{"answer": I[the solution is right], "format": r_format}, both of the last turn.

    The solution is the text between `<solution>` and `</solution>`; the last such pair counts. If the prompt's row has
    `tests` or `cases`, the solution's last Python block, or else all of it, is a program that has to pass them.
    Otherwise the solution has to equal `answer`. `compare` compares numbers, lists of numbers, yes and no. Any other
    text has to be identical, up to white space at its ends and a final full stop.
    r_format is the paper's, with `<solution>` in place of `<answer>`.
    """

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and last turn, in order."""
        solutions = [extract_answer(response, _TAG) for response in responses]
        pairs = list(zip(prompts, solutions, strict=True))
        checks = {prompt.id: self.read(prompt) for prompt in prompts}
        attempts = {
            number: (code.extract_last_block(solution) or solution, checks[prompt.id])
            for number, (prompt, solution) in enumerate(pairs)
            if solution is not None and (prompt.metadata.get("tests") or prompt.metadata.get("cases"))
        }
        reasons = dict(zip(attempts, self.judge([*attempts.values()]), strict=True))
        for number, (prompt, solution) in enumerate(pairs):
            if number not in reasons:
                reasons[number] = self.count(_compare_solution(prompt.answer, solution))
        return [
            {"answer": float(reasons[number] == "passed"), "format": format_reward(prompt.prefill + response, _TAG)}
            for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
        ]


def _compare_solution(gold: str, solution: str | None) -> str:
    if solution is None:
        return "no_solution"
    same = try_compare(gold.strip(), solution) if _is_mathematical(gold) else _normalize(gold) == _normalize(solution)
    return "passed" if same else "failed"


def _is_mathematical(gold: str) -> bool:
    """Returns whether other spellings of a gold answer are right; in a text, such as a printout, each letter counts."""
    if _PRINTOUT.search(gold.strip()):
        return False
    cleaned = clean(gold)
    return cleaned.lower() in OPPOSITES or _holds_numbers(cleaned)


def _holds_numbers(text: str) -> bool:
    """Returns whether a text is a number, or a list of numbers or of such lists."""
    brackets, items = split_list(text, thousands=True)
    if not brackets and items == [text]:
        return read_number(split_equation(text)[-1]) is not None
    return all(map(_holds_numbers, items))


def _normalize(text: str) -> str:
    return text.strip().removesuffix(".").rstrip()


reward = code.reward_of(CodeActReward)  # in whose module are the checks of rows and options
