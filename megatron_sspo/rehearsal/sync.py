"""The gathering of all weights as the run's engine asks for it, and what each rank then sends to the servers."""

from collections import Counter

from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.run import Run
from megatron_sspo.weights.gather import GatherPlan

Sent = tuple[tuple[int, int], ...]
"""(rank, bytes of weights that it sends to each server), of the ranks that send."""


def rehearse_sync(run: Run, gather: GatherPlan) -> Sent:
    """Gathers all weights, and returns what is sent to servers: nothing if the engine is in the trainer's processes."""
    options = Options(**run.rollouts.options) if run.rollouts.engine == "sglang" else None
    if options is None or options.transport == "ipc":  # every rank needs all weights
        for _ in gather:
            pass
        return ()
    if options.transport == "distributed":
        sent: Counter[int] = Counter()
        for part in gather.parts(bucket_bytes=options.bucket_bytes):
            sent[part.rank] += sum(entry.num_bytes for entry in part.entries)
        return tuple(sorted(sent.items()))
    for _ in gather.at_rank_0():
        pass
    return ((0, gather.num_bytes),)
