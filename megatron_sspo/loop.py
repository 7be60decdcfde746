"""`train(run)`: the algorithm, on one page."""

from pathlib import Path

from megatron_sspo.job import Job
from megatron_sspo.rollout.collect import with_advantages
from megatron_sspo.run import Run


def train(run: Run, *, resume: Path | None = None) -> int:
    """Trains a policy from `run.model` for `run.num_updates` optimizer steps.

    One cycle: give the engine the weights, roll out G responses to each prompt and score them, turn rewards into
    advantages, note π_old, and take μ optimizer steps, each on its own batch. A run that resumes within a cycle has
    the cycle's remaining batches at hand and starts with those.

    Args:
        run: the configuration.
        resume: the folder of an earlier attempt, to go on from its newest checkpoint.

    Returns:
        0, or, where the run was asked to end early and is to be resumed, the exit code that says so: see `stop`.

    Raises:
        UserError: something that the user can mend, in one sentence.
    """
    with Job(run, resume) as job:
        policy, state = job.policy, job.state

        while not job.stop.is_agreed() and state.update < run.num_updates:
            if not state.batches:
                with job.phase("sync"):
                    job.sync()
                with job.phase("rollout"):
                    groups = job.cycles.next(state.update)
                with job.phase("old_log_probs"):
                    if run.penalties.kl_coef:
                        groups = policy.reference_log_probs(groups)
                    first, *later = split(with_advantages(groups, run.advantage), run.updates_per_sync)
                    # the first batch is on-policy: its π_old is π_θ itself, ρ = 1, and there is nothing to note
                    state.batches = [first, *map(policy.old_log_probs, later)]

            batch = state.batches.pop(0)
            with job.phase("update"):
                record = policy.update(batch, run.objective)
            state.update += 1
            job.after_update(batch, record)
    return job.stop.exit_code


def split(groups: list, parts: int) -> list[list]:
    """A cycle's groups, dealt out to its updates."""
    return [groups[i::parts] for i in range(parts)]
