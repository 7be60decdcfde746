"""A batch of sequences of given lengths, as the trainer would get it from rollouts."""

from dataclasses import dataclass

from megatron_sspo.batching.pack import pack
from megatron_sspo.run import Run
from megatron_sspo.types import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The sequences of an update, all of the same length, and how they are packed.

    Attributes:
        prompt_tokens, response_tokens: of each sequence.
        sequences: of an update, over all ranks.
        microbatches: of a rank in an update.
        rehearsed: how many of them the rehearsal runs.
    """

    prompt_tokens: int
    response_tokens: int
    sequences: int
    microbatches: int
    rehearsed: int

    @property
    def tokens(self) -> int:
        """Tokens of an update, over all ranks."""
        return self.sequences * (self.prompt_tokens + self.response_tokens)


def workload(run: Run, *, prompt_tokens: int = 0, response_tokens: int = 0, at_most: int = 0) -> Workload:
    """Returns the workload of a run's update.

    Args:
        prompt_tokens, response_tokens: of each sequence; 0: the most that the run allows.
        at_most: microbatches to rehearse; 0: as many as fill the pipeline, and one more, because what an earlier one
            leaves behind counts too.
    """
    prompt_tokens = prompt_tokens or run.prompts.max_tokens
    response_tokens = response_tokens or run.rollouts.sampling.max_tokens
    sequences = run.rollouts.prompts_per_update * run.rollouts.group_size
    microbatches = _num_microbatches(run, prompt_tokens + response_tokens, sequences)
    parallel = run.parallel
    enough = at_most or parallel.pipeline * (2 if parallel.virtual_pipeline > 1 else 1) + 1
    if parallel.virtual_pipeline > 1:  # the interleaved schedule needs a multiple
        enough = -(-enough // parallel.pipeline) * parallel.pipeline
    return Workload(
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        sequences=sequences,
        microbatches=microbatches,
        rehearsed=min(microbatches, enough),
    )


def make_batch(work: Workload) -> list[RolloutGroup]:
    """Returns the part of the batch that is rehearsed: as many full microbatches as `work` says."""
    number = max(1, work.sequences * work.rehearsed // work.microbatches)
    tokens, log_probs = tuple(range(1, work.response_tokens + 1)), (-0.5,) * work.response_tokens
    prompt = Prompt(id="rehearsal", tokens=tuple(range(1, work.prompt_tokens + 1)), answer="")
    rollout = Rollout(
        tokens=tokens,
        rollout_log_probs=log_probs,
        old_log_probs=log_probs,
        text="",
        finish_reason="stop",
        policy_version=0,
        advantage=1.0,
    )
    return [RolloutGroup(prompt=prompt, rollouts=[rollout] * number)]


def _num_microbatches(run: Run, length: int, sequences: int) -> int:
    parallel = run.parallel
    multiple = 2 * parallel.context if parallel.context > 1 else 1
    plan = pack(
        [-(-length // multiple) * multiple] * sequences,
        num_ranks=parallel.data,
        max_tokens=run.tokens_per_microbatch,
        multiple_of=parallel.pipeline if parallel.virtual_pipeline > 1 else 1,
    )
    return len(plan[0])
