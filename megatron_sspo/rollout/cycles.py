"""The rollouts of successive cycles: how far generation runs ahead, and which groups are trained on."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.reward.overlong import Overlong
from megatron_sspo.reward.protocol import Reward
from megatron_sspo.rollout.collect import PendingGeneration, gather_groups, score, start_generation
from megatron_sspo.rollout.engine import Episodes, RolloutEngine
from megatron_sspo.rollout.open_engine import check_async_support
from megatron_sspo.run import Run
from megatron_sspo.types import Prompt, RolloutGroup


class RolloutCycles:
    """A source of groups, one cycle at a time. Every process makes the same calls and gets the same groups.

    Generation of the cycles begins in order, and runs ahead of training by as many cycles as `max_staleness` allows.
    The tokens of a cycle that is begun k cycles early are sampled by weights at most k·μ updates old. With a
    `max_staleness` of 0, generation of a cycle begins in `next`.

    Raises:
        UserError: the engine generates inside the trainer, which excludes staleness and oversampling; or staleness is
            combined with the release of the servers' memory.
    """

    def __init__(
        self,
        run: Run,
        engine: RolloutEngine,
        reward: Reward,
        prompts: PromptStream,
        *,
        sync: Callable[[], None],
        environment: Episodes | None = None,
    ) -> None:
        rollouts = run.rollouts
        check_async_support(rollouts, replicated=engine.replicated)
        self._run, self._engine, self._prompts, self._sync = run, engine, prompts, sync
        self._environment = environment
        self._num_groups = rollouts.prompts_per_update * run.updates_per_sync
        self._max_ahead = rollouts.max_staleness // run.updates_per_sync
        max_tokens = rollouts.sampling.max_tokens
        overlong = Overlong(max_tokens=max_tokens, buffer=rollouts.overlong_buffer, penalty=rollouts.overlong_penalty)
        self._score = partial(score, reward, overlong=overlong if rollouts.overlong_buffer else None)
        self._pending: deque[PendingGeneration] = deque()
        self._restored: deque[list[Prompt]] = deque()  # cycles that were begun before the run was resumed
        self._metrics: dict[str, float] = {}  # of the newest cycle
        self._cancelled: list[Prompt] = []  # prompts whose generation was cancelled; they come first in the next cycle

    def next(self, update: int) -> list[RolloutGroup]:
        """Returns the groups of the cycle that starts after `update` updates.

        Raises:
            UserError: routes are needed, but the engine reports none.
        """
        cycles_left = math.ceil((self._run.num_updates - update) / self._run.updates_per_sync)
        while len(self._pending) < min(1 + self._max_ahead, cycles_left):
            prompts = self._restored.popleft() if self._restored else self._draw(self._num_groups)
            self._pending.append(self._start(prompts, update))
        groups = self._gather(self._pending.popleft(), update)
        if not self._pending:
            self._engine.release_memory()
        if self._run.routing_replay == "R3" and any(r.routes is None for group in groups for r in group.rollouts):
            raise UserError(
                f'routing_replay is "R3", and the engine {self._run.rollouts.engine!r} reports no routes: choose '
                '"embedded" or "sglang", or "R2", which takes the routes of the trainer\'s own pass'
            )
        return groups

    def metrics(self) -> dict[str, float]:
        """Returns, once a cycle, the mean reward and number of all groups that were sampled, if groups are replaced.

        The means of `reward_metrics` are over the groups that are trained on.
        """
        found, self._metrics = self._metrics, {}
        return found

    def state(self) -> dict[str, Any]:
        """Returns the ids of the prompts that were drawn but not trained on, as JSON values."""
        begun = [*(cycle.prompts for cycle in self._pending), *self._restored]
        return {
            "begun": [[prompt.id for prompt in prompts] for prompts in begun],
            "given_up": [prompt.id for prompt in self._cancelled],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Schedules the prompts of a `state` again, in the same order.

        They are taken from the stream, which has compared its prompts with those of the checkpoint. If cycles have had
        another size, all of these prompts come first in the next cycles.
        """
        prompts = {prompt.id: prompt for prompt in self._prompts.prompts}
        self._restored = deque([prompts[each] for each in ids] for ids in state["begun"])
        self._cancelled = [prompts[each] for each in state["given_up"]]
        if any(len(prompts) != self._num_begun(self._num_groups) for prompts in self._restored):
            self._cancelled = [*(prompt for prompts in self._restored for prompt in prompts), *self._cancelled]
            self._restored.clear()

    def _start(self, prompts: Sequence[Prompt], update: int, attempt: int = 0) -> PendingGeneration:
        # a prompt that is drawn again, because the set is small, has new responses in each attempt
        rollouts, seed = self._run.rollouts, self._run.seed * 1_000_003 + update + attempt * 1_000_000_007
        return start_generation(
            self._engine,
            prompts,
            rollouts.sampling,
            group_size=rollouts.group_size,
            seed=seed,
            environment=self._environment,
        )

    def _draw(self, num_groups: int) -> list[Prompt]:
        """Draws prompts for so many groups, and further ones for oversampling."""
        count = self._num_begun(num_groups)
        first, self._cancelled = self._cancelled[:count], self._cancelled[count:]
        return first + self._prompts.take(count - len(first))

    def _num_begun(self, num_groups: int) -> int:
        """Returns the number of prompts that are begun for so many groups."""
        return math.ceil(num_groups * self._run.rollouts.oversampling)

    def _gather(self, cycle: PendingGeneration, update: int) -> list[RolloutGroup]:
        """Returns the groups to train on; if refills are allowed, accepted groups come first."""
        rollouts = self._run.rollouts
        refills = rollouts.refills
        accepted: list[RolloutGroup] = []
        rejected: list[RolloutGroup] = []  # only with refills; they fill up what is still missing

        def is_accepted(group: RolloutGroup) -> bool:
            if not refills:
                return True
            least, most = rollouts.min_pass_rate, rollouts.max_pass_rate
            if group.has_equal_rewards or (least, most) == (0, 1):
                return not group.has_equal_rewards
            rate = _pass_rate(group)
            return (not least or rate >= least) and (most == 1 or rate <= most)

        for attempt in range(1 + refills):
            missing = self._num_groups - len(accepted)

            def is_enough(groups: Sequence[RolloutGroup], missing: int = missing) -> bool:
                return sum(map(is_accepted, groups)) >= missing

            found = gather_groups(cycle, self._score, sync=self._sync, is_enough=is_enough)
            self._cancelled += [prompt for prompt, group in zip(cycle.prompts, found, strict=True) if group is None]
            for group in found:
                if group is not None:
                    (accepted if is_accepted(group) else rejected).append(group)
            if len(accepted) >= self._num_groups or attempt == refills:
                break
            cycle = self._start(self._draw(self._num_groups - len(accepted)), update, attempt + 1)
        if refills:
            rewards = [rollouts[0].reward for group in accepted + rejected for rollouts in group.episodes]
            sampled = float(len(accepted) + len(rejected))
            self._metrics = {"reward/mean_sampled": fmean(rewards), "rollout/groups_sampled": sampled}
        self._cancelled += [group.prompt for group in accepted[self._num_groups :]]  # too late to be cancelled
        return (accepted + rejected)[: self._num_groups]


def _pass_rate(group: RolloutGroup) -> float:
    """Returns the mean of the part "answer" over the episodes of a group; one without it counts as 0."""
    parts = [rollouts[0].reward_parts for rollouts in group.episodes]
    if not any("answer" in found for found in parts):
        raise UserError(
            "rollouts.min_pass_rate or max_pass_rate is set, and the reward has no part 'answer', of which the pass "
            f"rate is the mean (prompt {group.prompt.id!r}): leave them at 0 and 1, or give the reward that part"
        )
    return fmean(found.get("answer", 0.0) for found in parts)
