"""Trainer processes that send weights to servers that run already; every rank of a group runs this script.

    python senders.py MODEL FOLDER URLS KEY TP_SIZE LAYOUTS...

The layouts' names are those of tests/policy/layouts.py. With more processes than a layout has, it gets more
data-parallel ranks.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path


def sync_in(name: str, model: Path, folder: Path, urls: list[str], tp_size: int) -> dict[str, float]:
    """Sends three versions of the weights from all processes, and returns the metrics of the last sync on rank 0.

    After each sync the engine compares the checksum of every tensor on every rank of every server with those of the
    same weights, which are gathered again on rank 0.
    """
    import layouts
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from tiny_policy import make_run

    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.rollout.engines import sglang

    layout = layouts.LAYOUTS[name]
    copies = dist.get_world_size() // layout.parallel.num_processes
    parallel = replace(layout.parallel, data=layout.parallel.data * copies)
    device = initialize(parallel, seed=0)
    run = make_run(parallel, tokens=layout.tokens, megatron=layout.megatron, ddp=layout.ddp)
    policy = Policy(run, model, device)
    engine = sglang.engine(
        model,
        urls=urls,
        run_folder=folder,
        server={"tp_size": tp_size},
        transport="distributed",
        bucket_bytes=20_000,
        verify_every=1,
    )
    try:
        made = set()
        for version in range(3):
            with torch.no_grad():
                for chunk in policy.chunks:
                    for parameter in chunk.parameters():
                        parameter.mul_(1.0 + 0.1 * version)
            engine.load_weights(policy.weights(), version)
            made.add(engine._transport._name)
            found = engine.metrics()
        assert len(made) == 1, "the process groups are made once"
        assert engine._transport._senders == policy.weights().collectors()
        is_sender = dist.get_rank() in engine._transport._senders
        assert (engine._transport._group is not None) == is_sender
        found["senders"] = len(engine._transport._senders)
    finally:
        engine.close()
    parallel_state.destroy_model_parallel()
    return found


def main(model: Path, folder: Path, urls: str, key: str, tp_size: int, *names: str) -> None:
    import torch.distributed as dist
    from launcher import join

    join()
    os.environ["MEGATRON_SSPO_SERVER_KEY"] = key
    found = {}
    for name in names:
        print(f"layout {name}", flush=True)
        found[name] = sync_in(name, model, folder, urls.split(","), tp_size)
    if dist.get_rank() == 0:
        (folder / "senders.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5]), *sys.argv[6:])
