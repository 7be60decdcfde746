"""The reward: the share of digits that are right, and whether the whole answer is."""

from collections.abc import Sequence

from megatron_sspo.types import Prompt


class Digits:
    """The share of digits that are right, and 1 more if the whole answer is."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        """Returns a dictionary for each pair of prompt and response."""
        return [
            {
                "digits": sum(a == b for a, b in zip(prompt.answer, response, strict=False)) / len(prompt.answer),
                "answer": float(response == prompt.answer),
            }
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


def reward() -> Digits:
    """Builds the reward."""
    return Digits()
