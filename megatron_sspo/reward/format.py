"""r_format: whether a response follows the template `<think> ... </think> <answer> ... </answer>`."""

import re
from functools import cache


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
    answers = _pair(tag).findall(_outside_of_thoughts(response))
    return answers[-1].strip() if answers else None


def _outside_of_thoughts(response: str) -> str:
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
