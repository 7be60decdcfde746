"""The plan of a batch: which microbatch of which rank has a sequence, and which sequences share their prompt there.

Sequences that share a prompt go to the same microbatch, so they are packed as one item. Such items are coarser than
single sequences: rows are shorter, but the ranks' loads may be less even. Therefore a batch is planned with parts of
groups of several sizes, down to single sequences, and the plan that takes the least time is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megatron_sspo.batching.context import round_up
from megatron_sspo.batching.pack import fill, pack
from megatron_sspo.batching.routes import RouterShape
from megatron_sspo.batching.work import Work, causal_pairs, masked_pairs
from megatron_sspo.types import Batch

Part = tuple[int, ...]
"""The indices in the batch of the sequences that share a prompt in a row; one sequence by itself is a part too."""
Plan = list[list[list[Part]]]
"""[data-parallel rank][microbatch] -> parts."""


@dataclass(frozen=True)
class SharingCandidates:
    """Sequences that may share a prompt: those of a group, or those of a group whose prompts took the same routes."""

    prompt: int  # the number of tokens of the prompt
    responses: tuple[int, ...]  # tokens of each sequence after the prompt
    indices: tuple[int, ...]  # of these sequences in the batch


def sharing_candidates(batch: Batch) -> list[SharingCandidates]:
    """Returns which sequences of a batch may share their prompts."""
    found, first = [], 0
    for group in batch:
        places_of: dict[int, list[int]] = {}
        for place, rollout in enumerate(group.rollouts):
            places_of.setdefault(rollout.prompt_variant, []).append(place)
        found += [
            SharingCandidates(
                prompt=len(group.prompt.tokens),
                responses=tuple(len(group.rollouts[place].tokens) for place in places),
                indices=tuple(first + place for place in places),
            )
            for places in places_of.values()
        ]
        first += len(group.rollouts)
    return found


def prompt_variants(batch: Batch, router: RouterShape) -> list[int]:
    """Returns a number for each rollout; within a group, equal routes of the shared tokens have equal numbers.

    An engine that computes a prompt several times at once may round differently, and so choose other experts.
    """
    variants = []
    for group in batch:
        known: dict[bytes, int] = {}
        length = (len(group.prompt.tokens) - 1) * router.num_layers * router.topk
        for rollout in group.rollouts:
            routes = np.empty(0) if rollout.routes is None else rollout.routes[:length]
            variants.append(known.setdefault(routes.tobytes(), len(known)))
    return variants


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The packing of batches in a layout."""

    num_ranks: int  # data-parallel ranks
    max_tokens: int  # the largest number of tokens of a microbatch
    section_multiple: int = 1  # divisor of the length of a section of the row
    multiple_of: int = 1  # divisor of the number of microbatches of a rank
    work: Work = Work(token=1, pair=0)  # what tokens and attention cost; by default every token costs the same
    sharing_cost: float = 1.0  # the factor by which work takes longer in rows with shared prompts

    def plan(self, groups: Sequence[SharingCandidates], *, share_prompts: bool) -> Plan:
        """Plans a batch, in parts of single sequences if prompts are not shared, and alike on every process.

        Raises:
            UserError: a sequence does not fit into a microbatch.
        """
        largest = max((len(group.indices) for group in groups if group.prompt > 1), default=1) if share_prompts else 1
        sizes = [1]
        while sizes[-1] < largest:
            sizes.append(min(2 * sizes[-1], largest))

        def cost(found: tuple[int, Plan]) -> float:
            work, plan = found
            is_shared = any(len(part) > 1 for of_rank in plan for parts in of_rank for part in parts)
            return work * self.sharing_cost if is_shared else work

        return min((self._plan(groups, max_sequences) for max_sequences in sizes), key=cost)[1]

    def part_tokens(self, prompt: int, responses: Sequence[int]) -> int:
        """Returns the tokens of a part in a row, with padding."""
        if len(responses) == 1:
            return self._padded(prompt + responses[0])
        return self._padded(prompt - 1) + sum(self._padded(1 + response) for response in responses)

    def part_work(self, prompt: int, responses: Sequence[int]) -> int:
        """Returns the work of a part."""
        tokens = self.part_tokens(prompt, responses)
        if len(responses) == 1:
            return self.work.of(tokens, causal_pairs(prompt + responses[0]))
        shared = prompt - 1
        own = [1 + response for response in responses]
        pairs = sum(length * shared + causal_pairs(length) + masked_pairs(length) for length in own)
        return self.work.of(tokens, causal_pairs(shared) + pairs)

    def _plan(self, groups: Sequence[SharingCandidates], max_sequences: int) -> tuple[int, Plan]:
        """Returns the time of a plan, as work, and the plan, whose parts have at most `max_sequences` sequences.

        Ranks wait for each other in every microbatch where they exchange tokens for experts, so a microbatch takes the
        time of the rank that has the most work.
        """
        items = sorted(item for group in groups for item in self._parts(group, max_sequences))
        work = [cost for _, _, cost in items]
        plan = pack(
            [tokens for _, tokens, _ in items],
            num_ranks=self.num_ranks,
            max_tokens=self.max_tokens,
            multiple_of=self.multiple_of,
            work=work,
        )
        loads = [[sum(work[i] for i in members) for members in of_rank] for of_rank in plan]
        slowest = sum(max(at_once) for at_once in zip(*loads, strict=True))
        return slowest, [[[items[i][0] for i in members] for members in of_rank] for of_rank in plan]

    def _parts(self, group: SharingCandidates, max_sequences: int) -> list[tuple[Part, int, int]]:
        """Cuts a group into as few similar parts as possible that fit into a microbatch, each with tokens and work."""
        count = len(group.indices)
        own = [self._padded(1 + response) for response in group.responses]
        num_parts = -(-count // max_sequences) if group.prompt > 1 else count
        while num_parts < count:
            bins = fill(own, num_parts, self.max_tokens - self._padded(group.prompt - 1))
            if bins is not None and max(map(len, bins)) <= max_sequences:
                break
            num_parts += 1
        else:
            bins = [[i] for i in range(count)]
        found = []
        for members in bins:
            responses = [group.responses[i] for i in members]
            part = tuple(group.indices[i] for i in members)
            found.append((part, self.part_tokens(group.prompt, responses), self.part_work(group.prompt, responses)))
        return found

    def _padded(self, length: int) -> int:
        return round_up(length, self.section_multiple)
