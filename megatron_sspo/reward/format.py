"""r_format: whether a response follows the template `<think> ... </think> <answer> ... </answer>`."""

import re
from functools import cache
from typing import Literal

AnswerIn = Literal["tags", "boxed", "####", "last_number"]
_BOX = re.compile(r"\\boxed\s*\{")
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")


def format_reward(response: str, tag: str = "answer") -> float:
    """Returns r_format ∈ {1, 0.5, 0.25, 0}, from the SSPO paper's appendix "Reward and answer verification".

    The paper says "fully correct format / correct edge tokens (both) / correct edge (either) / otherwise". This means:

    * 1: each of the four tags occurs exactly once, in order; there is only white space between `</think>` and
      `<answer>`, and nothing before or after the tags. The text inside a pair of tags may be empty.
    * 0.5: both edge tokens are correct: the response starts with `<think>` and ends with `</answer>`.
    * 0.25: one of the two edge tokens is correct.
    * 0: neither is correct.

    White space around the response is ignored, since models often begin and end with a newline.

    Args:
        tag: the name of the tag in place of "answer".
    """
    response = response.strip()
    if _template(tag).fullmatch(response):
        return 1.0
    edges = response.startswith("<think>") + response.endswith(f"</{tag}>")
    return (0.0, 0.25, 0.5)[edges]


def extract_answer(response: str, tag: str = "answer") -> str | None:
    """Returns â: the stripped text between `<answer>` and `</answer>`; None if there is no such pair.

    If there are several pairs, the last one counts, as the conclusion. A pair has no other answer tag inside. A pair
    before `</think>` belongs to the thoughts, and is no conclusion.
    """
    answers = _pair(tag).findall(outside_of_thoughts(response))
    return answers[-1].strip() if answers else None


def find_answer(response: str, answer_in: AnswerIn) -> str | None:
    """Returns â as it is marked in a response, outside of its thoughts; None if it is not.

    Without tags, a thought that is not closed goes to the end of the response.

    tags: see `extract_answer`. boxed: the content of the last `\\boxed{}`, which must be closed. ####: what follows the
    last `####`, up to the end of its line. last_number: the last number in digits, with its sign and commas: "1,000.5".
    """
    if answer_in == "tags":
        return extract_answer(response)
    text = outside_of_thoughts(response).partition("<think>")[0]
    if answer_in == "boxed":
        return _last_box(text)
    if answer_in == "####":
        _, mark, rest = text.rpartition("####")
        return rest.strip().partition("\n")[0].strip() if mark else None
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _last_box(text: str) -> str | None:
    for opening in [*_BOX.finditer(text)][-1:]:
        depth = 1
        for position in range(opening.end(), len(text)):
            depth += (text[position] == "{") - (text[position] == "}")
            if not depth:
                return text[opening.end() : position].strip()
    return None


def outside_of_thoughts(response: str) -> str:
    """Returns a response without its closed thoughts; the first may have been opened by the prompt."""
    *closed, last = response.split("</think>")
    return " ".join((*(part.partition("<think>")[0] if "<think>" in part else "" for part in closed), last))


@cache
def _template(tag: str) -> re.Pattern[str]:
    text = rf"(?:(?!</?think>|</?{tag}>).)*"  # anything but one of the four tags
    return re.compile(rf"<think>{text}</think>\s*<{tag}>{text}</{tag}>", re.DOTALL)


@cache
def _pair(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<{tag}>((?:(?!</?{tag}>).)*)</{tag}>", re.DOTALL)
