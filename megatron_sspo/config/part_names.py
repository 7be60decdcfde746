"""The names that the parts of a reward may have."""

from collections.abc import Iterable

from megatron_sspo.errors import UserError

# the run's own metrics of rewards: a part of such a name would replace reward/mean, the mean of the whole reward
_TAKEN = ("", "mean", "zero_variance_groups")


def check_part_names(names: Iterable[str], who: str) -> None:
    """Checks that the parts of a reward can be the names of metrics, reward/NAME.

    Args:
        who: what gave the parts, for the message: "Scores.score".

    Raises:
        UserError: a name is empty, or a metric of the run has it.
    """
    for taken in (name for name in names if name in _TAKEN):
        raise UserError(
            f"{who} gave a part of the reward with the name {taken!r}, which cannot be that of its metric, "
            f"reward/{taken}: give the part another name"
        )
