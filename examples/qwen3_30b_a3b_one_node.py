"""Trains Qwen3-30B-A3B on one node of eight GPUs of 80 GB: its recipe for mathematics, with other places for its parts.

megatron-sspo train examples/qwen3_30b_a3b_one_node.py
sbatch --nodes=1 slurm/train_qwen3_30b_a3b.sbatch

The optimizer is in the host's memory, of which the run needs 0.8 TB, and servers and trainer use the GPUs in turns.
docs/full_size.md has the memory of each phase, and a predicted time.
"""

from dataclasses import replace

import qwen3_30b_a3b_math

from megatron_sspo.run import Parallel, Rollouts, Run


def recipe() -> Run:
    """Returns the run: masters and moments in the host's memory, two servers in turns with the trainer."""
    three_nodes = qwen3_30b_a3b_math.recipe()
    return replace(
        three_nodes,
        name="qwen3_30b_a3b_one_node",
        parallel=Parallel(data=8, expert=8),
        optimizer=replace(three_nodes.optimizer, offload=1.0),
        rollouts=in_turns(three_nodes.rollouts, num_servers=2),
        checkpoint_every=20,
    )


def in_turns(rollouts: Rollouts, num_servers: int) -> Rollouts:
    """Returns rollouts by servers of four GPUs each, which are the trainer's and take turns with it."""
    server = {"tp_size": 4, "mem_fraction_static": 0.85}
    options = {"num_servers": num_servers, "server": server, "transport": "ipc", "release_memory": True}
    return replace(rollouts, options=options)
