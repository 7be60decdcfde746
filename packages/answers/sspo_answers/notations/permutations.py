"""Compares permutations in the notation of cycles: (1 2 3) is (2 3 1), and not (1 3 2)."""

import re

_CYCLES = re.compile(r"(?:\(\s*[0-9]{1,3}(?:\s+[0-9]{1,3})*\s*\)\s*){1,30}")
_CYCLE = re.compile(r"\(([^()]*)\)")


def is_same_permutation(gold: str, answer: str) -> bool | None:
    """Returns whether two texts are the same disjoint cycles; None if the gold answer is no permutation.

    A cycle begins with any of its members, and cycles are in any order. Cycles that share a member are left as they
    are written.
    """
    if (
        " " not in gold
        or not _CYCLES.fullmatch(gold)
        or not any(" " in cycle.strip() for cycle in _CYCLE.findall(gold))
    ):
        return None
    if not _CYCLES.fullmatch(answer):
        return False
    cycles, others = ([_from_smallest(cycle.split()) for cycle in _CYCLE.findall(text)] for text in (gold, answer))
    members = [member for cycle in cycles for member in cycle]
    if len(set(members)) != len(members):
        return cycles == others
    return _moving(cycles) == _moving(others)


def _from_smallest(cycle: list[str]) -> list[int]:
    members = [int(member) for member in cycle]
    start = members.index(min(members))
    return members[start:] + members[:start]


def _moving(cycles: list[list[int]]) -> list[list[int]]:
    """Returns the cycles in one order, without those of one member."""
    return sorted(cycle for cycle in cycles if len(cycle) > 1)
