"""The verdict over several rows of one observation of question b."""

from collections.abc import Sequence

from examples.study.comparisons import AGAINST, FOR, MIXED, NOT_DECIDED, NOT_RUN


def joined(verdicts: Sequence[str]) -> str:
    """Returns the verdict that all tested rows share, or how many are for the mechanism if they differ."""
    tested = [one for one in verdicts if one in (FOR, AGAINST)]
    if not tested:
        return NOT_DECIDED if NOT_DECIDED in verdicts else NOT_RUN
    if len(set(tested)) == 1:
        return f"{tested[0]} ({len(tested)} of {len(verdicts)} rows tested)"
    return f"{MIXED} (for in {tested.count(FOR)} of {len(tested)} tested rows)"
