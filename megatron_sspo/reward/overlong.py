"""A soft penalty on responses whose length is close to the limit of tokens."""

from dataclasses import dataclass, replace

from megatron_sspo.errors import UserError
from megatron_sspo.types import RolloutGroup

PART = "overlong"


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """A penalty: 0 up to `max_tokens − buffer` tokens, −`penalty` at `max_tokens`, and linear in between.

    In a response of several turns all tokens count, also those of observations, since `max_tokens` bounds their sum.

    Source: DAPO, "soft overlong punishment" (arXiv 2503.14476, §3.4).
    """

    max_tokens: int
    buffer: int
    penalty: float

    def __call__(self, num_tokens: int) -> float:
        """Returns the part of the reward, 0 or below."""
        beyond = num_tokens - (self.max_tokens - self.buffer)
        return -self.penalty * min(1.0, max(0.0, beyond / self.buffer))

    def add(self, group: RolloutGroup) -> RolloutGroup:
        """Returns the group with the part "overlong" added to every reward. Raises UserError if one has it already."""
        if any(PART in rollout.reward_parts for rollout in group.rollouts):
            raise UserError(
                f"the reward has a part {PART!r}, and rollouts.overlong_buffer, which is above 0, adds one of that "
                "name: give the part another name, or set rollouts.overlong_buffer to 0"
            )
        parts = [{**rollout.reward_parts, PART: self(len(rollout.tokens))} for rollout in group.rollouts]
        pairs = zip(group.rollouts, parts, strict=True)
        return replace(group, rollouts=[replace(rollout, reward_parts=part) for rollout, part in pairs])
