"""r_format: does a response keep to the template `<think> ... </think> <answer> ... </answer>`?"""

import re
from functools import cache


def format_reward(response: str, tag: str = "answer") -> float:
    """r_format ∈ {1, 0.5, 0.25, 0}, from the SSPO paper's appendix "Reward and answer verification".

    The paper: "fully correct format / correct edge tokens (both) / correct edge (either) / otherwise". Read as:

    * 1: each of the four tags exactly once, in order, nothing but white space between `</think>` and `<answer>`, and
      nothing before or after. What stands between the tags may be empty.
    * 0.5: the edge tokens are those of the template: the response starts with `<think>` and ends with `</answer>`.
    * 0.25: one of the two.
    * 0: neither.

    White space around the response is not counted as text: models open with a newline, and close with one.

    Args:
        tag: what stands in the place of "answer".
    """
    response = response.strip()
    if _template(tag).fullmatch(response):
        return 1.0
    edges = response.startswith("<think>") + response.endswith(f"</{tag}>")
    return (0.0, 0.25, 0.5)[edges]


def extract_answer(response: str, tag: str = "answer") -> str | None:
    """â: what stands between `<answer>` and `</answer>`, stripped; None without such a pair.

    Of several pairs the last one counts, as the conclusion of the response. A pair has no other answer tag inside.
    """
    answers = _pair(tag).findall(response)
    return answers[-1].strip() if answers else None


@cache
def _template(tag: str) -> re.Pattern[str]:
    text = rf"(?:(?!</?think>|</?{tag}>).)*"  # anything but one of the four tags
    return re.compile(rf"<think>{text}</think>\s*<{tag}>{text}</{tag}>", re.DOTALL)


@cache
def _pair(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<{tag}>((?:(?!</?{tag}>).)*)</{tag}>", re.DOTALL)
