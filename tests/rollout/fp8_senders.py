"""Two trainer processes, tensor 2 and expert 2, send their weights in FP8; every rank of a group runs this script.

    python fp8_senders.py SOURCE FILE

SOURCE is a Hugging Face folder in bfloat16. FILE gets, for each transport, what a server has received, name -> SHA-256
of the bytes, and the checksums that the server is compared with.
"""

import base64
import hashlib
import io
import json
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

TRANSPORTS = ("tensor", "ipc", "disk", "distributed")
BUCKET_BYTES = 20_000  # several buckets


def digest(tensor: torch.Tensor) -> str:
    """Returns SHA-256 over the tensor's bytes."""
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def make_plan(folder, rank: int):
    """Returns the plan of a rank with a half of each attention layer and vocabulary, and with half of the experts."""
    from megatron_sspo.weights.gather import GatherPlan

    parameters, shards = {}, {}
    for row in folder.rows():
        expert = re.search(r"\.experts\.(\d+)\.", row.name)
        if expert is None or int(expert[1]) % 2 == rank:
            shards[row.name] = (rank, 2) if row.group == "tensor" else (0, 1)
            parameters[row.name] = row.to_megatron(folder.read, *shards[row.name]).clone()
    return GatherPlan(folder.rows(), parameters, shards)


class Key:
    """The engine's key of a server, on the GPU "cpu"."""

    devices = ("cpu",)


class Server:
    """A client of a server that gets weights in requests or in a folder.

    Attributes:
        digests: name -> SHA-256 of each tensor that it has received.
    """

    url = "http://x"

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    async def post(self, path, content, *, seconds):
        if path == "/update_weights_from_tensor":
            found = Unpickler(io.BytesIO(base64.b64decode(content["serialized_named_tensors"][0]))).load()
            for entry in found["metadata"]:
                part = found["flattened_tensor"][entry.start_idx : entry.end_idx]
                self._keep(entry.name, part.view(entry.dtype).reshape(entry.shape))
        if path == "/update_weights_from_disk":
            from safetensors.torch import load_file

            for name, tensor in load_file(Path(content["model_path"], "model.safetensors")).items():
                self._keep(name, tensor)
            assert json.loads(Path(content["model_path"], "config.json").read_text())["quantization_config"]
        return {}

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        assert name not in self.digests, "a tensor was sent twice"
        self.digests[name] = digest(tensor)


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"):
            return SimpleNamespace
        assert not module.startswith("megatron_sspo"), "a server has no class of ours"
        return super().find_class(module, name)


def send_bytes_for_handles() -> None:
    """Makes the transport "ipc" send bytes, where it would send a handle of a GPU's memory."""
    from megatron_sspo.rollout.weight_sync import ipc
    from megatron_sspo.rollout.weight_sync.tensor import with_sglang_class_name

    def message(flat, metadata, _):
        pickled = pickle.dumps({"metadata": metadata, "flattened_tensor": flat}, protocol=2)
        return base64.b64encode(with_sglang_class_name(pickled)).decode()

    ipc._device = lambda: torch.device("cpu")
    ipc.ipc_message = message
    torch.cuda.synchronize = torch.cuda.ipc_collect = lambda *_: None


def main(source: Path, file: Path) -> None:
    import torch.distributed as dist
    from launcher import join
    from receivers import Receiver, submitter

    from megatron_sspo.rollout.engines.sglang import _build_transport
    from megatron_sspo.rollout.servers.options import Options
    from megatron_sspo.rollout.weight_sync.checksums import Checksums
    from megatron_sspo.rollout.weight_sync.session import SyncSession
    from megatron_sspo.weights.formats.open_folder import open_folder
    from megatron_sspo.weights.fp8 import quantized_names
    from megatron_sspo.weights.quantized_plan import quantized

    join()
    send_bytes_for_handles()
    rank = dist.get_rank()
    with open_folder(source) as folder:
        plan, config = quantized(make_plan(folder, rank), quantized_names(folder.rows())), folder.config
    found = {"size": plan.num_bytes}
    for name in TRANSPORTS:
        options = Options(transport=name, quantize="fp8", bucket_bytes=BUCKET_BYTES, run_folder=file.parent)
        transport = _build_transport(options, source)
        if rank == 1:
            transport.participate(plan)
            transport.close()
            continue
        server = Receiver() if name == "distributed" else Server()
        if name == "distributed":
            server.start()
        submit, _ = submitter()
        session = SyncSession({Key(): server}, submit)
        checksums = Checksums(config, dtype=torch.bfloat16)
        transport.send(session, plan, "run-1", checksums.observe)
        assert session.servers and not session.failures, session.failures
        transport.close(session)
        found[name] = {"digests": server.digests, "checksums": checksums._found[0], "size": session.num_bytes}
        if name == "distributed":
            server.stop()
    if rank == 0:
        file.write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1] / "policy")]
    main(Path(sys.argv[1]), Path(sys.argv[2]))
