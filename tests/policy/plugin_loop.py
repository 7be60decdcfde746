"""The first gradient of examples/plugin_own_loop.py's loop and of ours, on two processes; every rank runs this script.

python plugin_loop.py FOLDER RESULT
"""

import importlib.util
import sys
from pathlib import Path

import torch


def main(folder: Path, result: Path) -> None:
    from launcher import join

    join()
    import torch.distributed as dist
    from layouts import gather_gradients
    from tiny_policy import VOCAB_SIZE, make_run

    from megatron_sspo.objective import sspo
    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.run import Parallel, Rollouts
    from megatron_sspo.types import Prompt, RolloutGroup, Sampling
    from tests.responses import response

    path = Path(__file__).parents[2] / "examples" / "plugin_own_loop.py"
    spec = importlib.util.spec_from_file_location("plugin_own_loop", path)
    assert spec and spec.loader
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.VOCAB_SIZE = VOCAB_SIZE

    parallel = Parallel(data=2)
    device = initialize(parallel, seed=0)
    policy = Policy(make_run(parallel, rollouts=Rollouts(sampling=Sampling(temperature=1.0))), folder, device)
    given = example.sample(32)
    shares = [None, None]
    dist.all_gather_object(shares, example.gradient(policy.chunks[0], given))
    theirs = gather_gradients(policy)
    groups = [
        RolloutGroup(
            prompt=Prompt(id=str(number), tokens=tuple(one["prompt"]), answer=""),
            rollouts=[
                response(
                    one["response"], rollout_log_probs=one["old"], old_log_probs=one["old"], advantage=one["advantage"]
                )
            ],
        )
        for number, one in enumerate(given)
    ]
    record = policy.gradient(groups, sspo())
    ours = gather_gradients(policy)
    if dist.get_rank() == 0:
        torch.save({"losses": (sum(shares), record.loss), "theirs": theirs, "ours": ours}, result)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
