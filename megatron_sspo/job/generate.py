"""`generate`: rollouts without training, for `train --rollouts`."""

from dataclasses import replace

from megatron_sspo.job.job import Job
from megatron_sspo.job.saved_rollouts import write_cycle
from megatron_sspo.run import Run


def generate(run: Run) -> int:
    """Generates the rollouts of all cycles with the initial weights, and writes them into the run's folder.

    Returns 0, or one of the exit codes of `stop` if it was asked to end early. Raises UserError.
    """
    with Job(replace(run, evaluation=None, checkpoint_every=0, teacher=None), None) as job:
        job.is_whole = False
        for update in range(0, run.num_updates, run.updates_per_sync):
            if job.stop.is_requested():
                break
            job.sync()
            groups = job.cycles.next(update)
            if job.is_main:
                write_cycle(job.folder, update // run.updates_per_sync, groups)
                rewards = [rollout.reward for group in groups for rollout in group.rollouts]
                job.display.log(f"rollouts of update {update + 1}  reward {sum(rewards) / len(rewards):.3f}")
        return job.stop.exit_code
