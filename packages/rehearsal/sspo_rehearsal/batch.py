"""A batch of sequences of given lengths, as the trainer would get it from rollouts, and how it is packed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatron_sspo.batching.context import num_parts, round_up
from megatron_sspo.batching.pack import pack
from megatron_sspo.run import Parallel, Run
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The sequences of an update, all of the same length, and how they are packed.

    Attributes:
        prompt_tokens, response_tokens: of each sequence.
        sequences: of an update, over all ranks.
        microbatches: of a rank in an update.
        per_microbatch: sequences of the fullest microbatch; the rehearsed ones are all like it.
        rehearsed: how many microbatches the rehearsal runs.
        data_ranks: the ranks that share the sequences.
    """

    prompt_tokens: int
    response_tokens: int
    sequences: int
    microbatches: int
    per_microbatch: int
    rehearsed: int
    data_ranks: int

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.prompt_tokens + self.response_tokens

    @property
    def tokens(self) -> int:
        """Tokens of an update, over all ranks."""
        return self.sequences * self.length

    @property
    def rehearsed_sequences(self) -> int:
        """Sequences of the rehearsed microbatches of all ranks."""
        return self.rehearsed * self.per_microbatch * self.data_ranks

    @property
    def factor(self) -> float:
        """The tokens of an update, as a multiple of the rehearsed ones."""
        return self.sequences / self.rehearsed_sequences


def workload(run: Run, *, prompt_tokens: int = 0, response_tokens: int = 0, at_most: int = 0) -> Workload:
    """Returns the workload of a run's update.

    Args:
        prompt_tokens, response_tokens: of each sequence; 0: the most that the run allows.
        at_most: microbatches to rehearse; 0: as many as fill the pipeline, and one more, because what an earlier one
            leaves behind counts too.

    Raises:
        UserError: a sequence does not fit into a microbatch.
    """
    prompt_tokens = prompt_tokens or run.prompts.max_tokens
    response_tokens = response_tokens or run.rollouts.sampling.max_tokens
    sequences = run.rollouts.prompts_per_update * run.rollouts.group_size
    parallel = run.parallel
    interleaved = parallel.virtual_pipeline > 1
    plan = pack(
        [padded_length(run, prompt_tokens + response_tokens)] * sequences,
        num_ranks=parallel.data,
        max_tokens=run.tokens_per_microbatch,
        multiple_of=parallel.pipeline if interleaved else 1,
    )
    microbatches = len(plan[0])
    enough = at_most or microbatches_held(parallel) + 1
    if interleaved:  # its schedule needs a multiple
        enough = round_up(enough, parallel.pipeline)
    return Workload(
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        sequences=sequences,
        microbatches=microbatches,
        per_microbatch=max(len(members) for of_rank in plan for members in of_rank),
        rehearsed=min(microbatches, enough),
        data_ranks=parallel.data,
    )


def microbatches_held(parallel: Parallel) -> int:
    """Returns the number of microbatches whose activations a pipeline stage holds at once, at most."""
    return parallel.pipeline * (2 if parallel.virtual_pipeline > 1 else 1)


def padded_length(run: Run, length: int) -> int:
    """Returns the length to which context parallelism pads a sequence."""
    return round_up(length, num_parts(run.parallel.context))


def rehearsed_run(run: Run, work: Workload) -> Run:
    """Returns the run with microbatches of no more than the rehearsed ones' tokens, so that they are packed so.

    Every sequence has its own prompt: what shared prompts save depends on the lengths of a batch.
    """
    tokens = work.per_microbatch * padded_length(run, work.length)
    return replace(run, tokens_per_microbatch=tokens, share_prompts=False)


def received_shape(run: Run, work: Workload, hidden_size: int) -> tuple[int, int, int]:
    """Returns the shape of the hidden states that a pipeline stage gets of a rehearsed microbatch."""
    parallel = run.parallel
    shards = parallel.tensor if parallel.sequence else 1
    tokens = round_up(work.per_microbatch * padded_length(run, work.length), num_parts(parallel.context) * shards)
    return tokens // parallel.context // shards, 1, hidden_size


def make_batch(work: Workload, needs: Sequence[str] = ()) -> list[RolloutGroup]:
    """Returns the sequences of the rehearsed microbatches, with the inputs that the objective needs."""
    tokens = np.arange(1, work.response_tokens + 1, dtype=np.int32)
    log_probs = np.full(work.response_tokens, -0.5, dtype=np.float32)
    prompt = Prompt(id="rehearsal", tokens=tuple(range(1, work.prompt_tokens + 1)), answer="")
    rollout = Rollout(
        tokens=tokens,
        rollout_log_probs=log_probs,
        old_log_probs=log_probs,
        old_entropy=-log_probs if "old_entropy" in needs else None,
        reference_log_probs=log_probs if "reference_log_probs" in needs else None,
        text="",
        finish_reason="stop",
        policy_version=0,
        advantage=1.0,
    )
    return [RolloutGroup(prompt=prompt, rollouts=[rollout] * work.rehearsed_sequences)]
