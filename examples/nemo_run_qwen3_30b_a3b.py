"""Qwen3-30B-A3B in the paper's setting, as a NeMo-Run experiment on a Slurm cluster.

    make install-nemo-run
    .venv-nemo-run/bin/python examples/nemo_run_qwen3_30b_a3b.py --account research --partition h100 --dry-run
    CONTAINER=trainer.sqsh SERVER_CONTAINER=sglang.sqsh .venv-nemo-run/bin/python examples/nemo_run_qwen3_30b_a3b.py ...

It needs three nodes of eight GPUs: one node generates, two train. The variables are explained in slurm/README.md, and
NeMo-Run's treatment of them in docs/nemo_run.md. This example has not been run on GPUs yet.
"""

import argparse
import sys

from megatron_sspo.errors import UserError
from megatron_sspo.launch.nemo_run import launch, slurm_executor
from megatron_sspo.launch.slurm import SlurmJob, variables_from_environment


def main() -> int:
    """Submits the experiment, waits for its end, and returns 0 if it has succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--account", required=True)
    parser.add_argument("--partition", required=True)
    parser.add_argument("--stale", action="store_true", help="send weights to the servers every 4 updates")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    options = parser.parse_args()
    job = SlurmJob(
        recipe=f"examples/qwen3_30b_a3b_math.py{':stale' if options.stale else ''}",
        options=["--nodes=3"],
        variables=variables_from_environment(),
        script="slurm/train_qwen3_30b_a3b.sbatch",
    )
    executor = slurm_executor(job, account=options.account, partition=options.partition)
    return launch(job, executor, dry_run=options.dry_run)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"megatron-sspo: {error}")
