"""Two trainer processes that share a bucket of weights with a server on the GPU of rank 0; both run this script.

python ipc_senders.py FILE
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / "policy"), str(ROOT)]


class Reader:
    """A client of a server that opens the handle which it is sent."""

    url = "http://reader"

    def __init__(self) -> None:
        self.read: list[str] = []

    async def post(self, path, content, *, seconds):
        if path == "/update_weights_from_tensor":
            (message,) = content["serialized_named_tensors"]
            command = [sys.executable, str(ROOT / "tests" / "gpu" / "ipc_reader.py")]
            done = subprocess.run(command, input=message, capture_output=True, text=True, timeout=100, check=True)
            self.read.append(done.stdout.split()[0])
        return {}


def main(file: Path) -> None:
    import torch.distributed as dist
    from launcher import join

    from megatron_sspo.rollout.servers.pool import Server
    from megatron_sspo.rollout.weight_sync.ipc import IpcTransport
    from megatron_sspo.rollout.weight_sync.session import SyncSession
    from tests.rollout.receivers import submitter
    from tests.rollout.two_senders import ROWS, make_gather, value

    join()
    gather, transport = make_gather(dist.get_rank()), IpcTransport(bucket_bytes=1 << 30)
    if dist.get_rank() == 1:
        transport.participate(gather)
    else:
        flat = torch.cat([value(name) for name in [*(f"{r}.{n}" for r in range(2) for n in range(ROWS)), "shared"]])
        gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        reader, (submit, _) = Reader(), submitter()
        server = Server(reader, devices=(gpu,))  # pyright: ignore[reportArgumentType]
        session = SyncSession({server: reader}, submit)  # pyright: ignore[reportArgumentType]
        transport.send(session, gather, "run-1")
        expected = [hashlib.sha256(flat.numpy().tobytes()).hexdigest()]
        found = {"equal": reader.read == expected, "failed": [str(error) for error in session.failures.values()]}
        file.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
