"""Two trainer processes that send different weights to two servers; every rank of a group runs this script.

    python two_senders.py HOW FILE

HOW is "well", "server" (one of the servers is killed in the middle) or "sender" (rank 1 is).
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

ROWS = 6  # of each rank
SIZE = 50_000


def value(name: str) -> torch.Tensor:
    """Returns the weight of that name, which a rank has and the others do not."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(SIZE, generator=generator)


def make_gather(rank: int):
    """Returns the plan of a model of which each rank has some parameters, and both have one."""
    from megatron_sspo.rollout.weight_sync.group import device
    from megatron_sspo.weights.gather import GatherPlan
    from megatron_sspo.weights.sharding import Sharding
    from megatron_sspo.weights.table import ParameterMap

    def row(name: str) -> ParameterMap:
        return ParameterMap(name=name, hf=(f"hf.{name}",), hf_shapes=((SIZE,),), sharding=Sharding())

    own = [*(f"{rank}.{number}" for number in range(ROWS)), "shared"]
    rows = [row(f"{r}.{number}") for r in range(2) for number in range(ROWS)] + [row("shared")]
    parameters = {name: value(name).to(device()) for name in own}
    return GatherPlan(rows, parameters, dict.fromkeys(own, (0, 1)))


def observer(names: list[str]):
    """Returns a function that yields a stream, and writes down its names."""

    def observe(stream):
        for name, tensor in stream:
            names.append(name)
            yield name, tensor

    return observe


def main(how: str, file: Path) -> None:
    import torch.distributed as dist
    from launcher import join
    from receivers import Receiver, submitter

    from megatron_sspo.processes import agree
    from megatron_sspo.rollout.weight_sync import distributed, outbox
    from megatron_sspo.rollout.weight_sync.session import SyncSession

    join()
    distributed._ANSWER_SECONDS = 5.0
    rank = dist.get_rank()
    gather = make_gather(rank)
    transport = distributed.DistributedTransport(bucket_bytes=2 * value("").nbytes, tp_size=1)
    if rank == 1:
        if how == "sender":
            put = outbox.Outbox.put

            def fatal_put(self, turn, tensors):
                if turn > 4:
                    os._exit(0)
                put(self, turn, tensors)

            outbox.Outbox.put = fatal_put
        for _ in range(3):
            transport.participate(gather)
        transport.close()
        return
    submit, _ = submitter()
    servers = {0: Receiver("die", fatal=2) if how == "server" else Receiver(), 1: Receiver()}
    expected = {f"hf.{r}.{n}": value(f"{r}.{n}") for r in range(2) for n in range(ROWS)} | {
        "hf.shared": value("shared")
    }
    digests = {name: hashlib.sha256(tensor.numpy()).hexdigest() for name, tensor in expected.items()}
    found = []
    for server in servers.values():
        server.start()
    try:
        for version in range(3):
            session = SyncSession(servers, submit)
            started, name = time.monotonic(), transport._name
            observed: list[str] = []
            transport.send(session, gather, f"run-{version}", observer(observed))
            found.append(
                {
                    "left": list(session.servers),
                    "failed": {key: str(error) for key, error in session.failures.items()},
                    "served": [key for key, server in servers.items() if server.ended],
                    "equal": [key for key, server in servers.items() if server.digests == digests],
                    "observed": observed == list(expected),
                    "seconds": time.monotonic() - started,
                    "new_groups": transport._name != name,
                    "senders": list(transport._senders),
                }
            )
            for key in session.failures:
                del servers[key]
        transport.close()
    except RuntimeError as error:
        found.append({"broken": agree.is_broken_connection(error), "served": [s.ended for s in servers.values()]})
    finally:
        for server in servers.values():
            server.stop()
        file.write_text(json.dumps(found))
    os._exit(0)  # the process group may have lost a rank


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1] / "policy")]
    main(sys.argv[1], Path(sys.argv[2]))
