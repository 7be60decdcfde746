"""`train(run)`: the algorithm, on one page."""

from collections.abc import Sequence
from pathlib import Path

from megatron_sspo.batching.holders import with_engine_as_old, without_old
from megatron_sspo.job.job import Job
from megatron_sspo.rollout.advantages import with_advantages, without_truncated
from megatron_sspo.rollout.kl_in_reward import with_kl
from megatron_sspo.run import Run
from megatron_sspo.types import RolloutGroup


def train(run: Run, *, resume: Path | None = None, profile: range = range(0), rollouts: Path | None = None) -> int:
    """Trains a policy from `run.model` for `run.num_updates` optimizer steps.

    One cycle has these steps: load the weights into the engine, roll out G responses to each prompt and score them,
    turn rewards into advantages, compute the log-probs of π_old unless they are the engine's, and take μ optimizer
    steps, each on its own batch. A run that resumes within a cycle starts with the cycle's remaining batches, which are
    in the checkpoint.

    Args:
        resume: the folder of an earlier attempt, to resume from its newest checkpoint.
        profile: the successive updates that torch's profiler traces.
        rollouts: the folder of a run of `generate`, whose rollouts are trained on in place of new ones.

    Returns:
        0, or one of the exit codes of `stop` if the run was asked to end early and is to be resumed.

    Raises:
        UserError: the user can fix the problem; the message is one sentence.
    """
    with Job(run, resume, profile, rollouts) as job:
        policy, state = job.policy, job.state

        while not job.stop.is_requested() and state.update < run.num_updates:
            if not state.batches:
                with job.phase("sync"):
                    job.sync()
                with job.phase("rollout"):
                    groups = job.cycles.next(state.update)
                with job.phase("old_log_probs"):
                    state.batches = batches_of(groups, job)

            batch = state.batches.pop(0)
            with job.phase("update"):
                record = policy.update(batch, run.objective)
            state.update += 1
            if run.reference_every and state.update % run.reference_every == 0:
                policy.move_reference()
            job.after_update(batch, record)
    return job.stop.exit_code


def batches_of(groups: Sequence[RolloutGroup], job: Job) -> list[list[RolloutGroup]]:
    """Splits a cycle's groups into one batch per update, with advantages and the log-probs that updates need."""
    policy, run = job.policy, job.run
    if run.kl_in_reward:
        groups = _with_kl(groups, job)
    groups = with_advantages(groups, run.advantage)
    if run.rollouts.mask_truncated:
        groups = without_truncated(groups)
    batches = policy.scatter([groups[i :: run.updates_per_sync] for i in range(run.updates_per_sync)])
    if run.needs_reference and not run.kl_in_reward:
        batches = policy.reference_log_probs(batches)
    if run.teacher:
        batches = job.training.teach(batches)
    if run.old_policy == "rollout":
        return [*map(with_engine_as_old, batches)]
    first, *later = batches
    # the first batch is on-policy: its π_old is π_θ itself and ρ = 1, so it needs no old log-probs
    return [without_old(first), *(later if run.kl_in_reward else map(policy.old_log_probs, later))]


def _with_kl(groups: Sequence[RolloutGroup], job: Job) -> list[RolloutGroup]:
    """Returns a cycle's groups with the KL in their rewards, and with the log-probs of π_ref and π_old."""
    policy, run = job.policy, job.run
    (batch,) = policy.reference_log_probs(policy.scatter([groups]))
    batch = with_engine_as_old(batch) if run.old_policy == "rollout" else policy.old_log_probs(batch)
    return with_kl(batch, run.kl_in_reward)
