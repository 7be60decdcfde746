"""The names that the parts of a reward may have."""

from collections.abc import Iterable

from megatron_sspo.config.naming import describe_value
from megatron_sspo.errors import UserError

# the run's own metrics of rewards: a part of such a name would replace reward/mean, the mean of the whole reward
_TAKEN = ("mean", "zero_variance_groups")
_LONGEST = 200  # characters


def check_part_names(names: Iterable[str], who: str) -> None:
    """Checks that the parts of a reward can be the names of metrics, reward/NAME.

    Args:
        who: what gave the parts, for the message: "Scores.score".

    Raises:
        UserError: a name is empty, is no printable line or is too long, or a metric of the run has it.
    """
    for name in names:
        if not name or not name.isprintable() or name != name.strip() or len(name) > _LONGEST:
            raise UserError(
                f"{who} gave a part of the reward with the name {describe_value(name)}: a name is one printable line "
                f"of at most {_LONGEST} characters, without spaces around it"
            )
        if name in _TAKEN:
            raise UserError(
                f"{who} gave a part of the reward with the name {name!r}, which the run gives to a metric of the whole "
                f"reward, reward/{name}: give the part another name"
            )
