"""Compares a model's answer to a mathematical question with the gold answer."""

from sspo_answers.verify import is_equivalent

__all__ = ["is_equivalent"]
