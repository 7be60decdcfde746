"""A soft penalty on responses that come near the limit of tokens."""

from dataclasses import dataclass, replace

from megatron_sspo.types import RolloutGroup


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """0 up to `max_tokens − buffer` tokens, −`penalty` at `max_tokens`, and a straight line between.

    Of several turns all tokens count, those of observations too, since it is all of them that `max_tokens` bounds.

    Source: DAPO, "soft overlong punishment" (arXiv 2503.14476, §3.4).
    """

    max_tokens: int
    buffer: int
    penalty: float

    def __call__(self, num_tokens: int) -> float:
        """The part of the reward, 0 or below."""
        beyond = num_tokens - (self.max_tokens - self.buffer)
        return -self.penalty * min(1.0, max(0.0, beyond / self.buffer))

    def add(self, group: RolloutGroup) -> RolloutGroup:
        """The group with the part "overlong" in every reward."""
        parts = [{**rollout.reward_parts, "overlong": self(len(rollout.tokens))} for rollout in group.rollouts]
        pairs = zip(group.rollouts, parts, strict=True)
        return replace(group, rollouts=[replace(rollout, reward_parts=part) for rollout, part in pairs])
