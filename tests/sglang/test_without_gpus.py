"""GPU-only code, compared with SGLang's own code as far as possible without a GPU."""

import json
import subprocess
from pathlib import Path

import torch

from megatron_sspo.rollout.servers.process import find_python
from megatron_sspo.rollout.weight_sync.checksums import digest_on_gpu
from megatron_sspo.rollout.weight_sync.ipc import ipc_message
from megatron_sspo.rollout.weight_sync.tensor import flatten


def in_sglang(program: str, *arguments: str) -> str:
    """Runs a program in the server's Python environment, and returns the last line of its output."""
    command = [str(find_python(None)), "-W", "ignore", "-c", program, *arguments]
    environment = {"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


KERNEL = """
import json, sys, torch
from sglang.kernels.ops.memory import gpu_tensor_hash as ours
found = []
for path in sys.argv[1:]:
    words = torch.load(path).contiguous().reshape(-1).view(torch.uint8)
    words = torch.cat([words, words.new_zeros(-len(words) % 4)]).view(torch.uint32)
    tiles = torch.empty(-(-len(words) // 8192), dtype=torch.uint64)
    seed = 0x243F6A88
    ours.hash_tiles32_kernel_blocked[(len(tiles),)](
        words, tiles, len(words), seed1=seed, seed2=((seed * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF,
        FM_C1=ours.FMIX32_C1, FM_C2=ours.FMIX32_C2, POS_A=ours.POS_C1, POS_B=ours.POS_C2,
        TILE=8192, BLOCK=256, USE_CG=False)
    found.append(f"{ours._final_splitmix64(sum(tiles.tolist()) % 2**64):016x}")
print(json.dumps(found))
"""


def test_gpu_checksums_equal_those_of_sglangs_kernel(tmp_path: Path):
    """Runs SGLang's kernel in Triton's interpreter, and sums the tiles as its host function does on a GPU."""
    tensors = [
        torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
        for count, dtype in ((5, torch.float32), (3, torch.bfloat16), (9000, torch.float32), (40_001, torch.bfloat16))
    ]
    for number, tensor in enumerate(tensors):
        torch.save(tensor, tmp_path / f"{number}.pt")
    theirs = json.loads(in_sglang(KERNEL, *(str(tmp_path / f"{number}.pt") for number in range(len(tensors)))))
    assert [digest_on_gpu(tensor) for tensor in tensors] == theirs
    assert len(set(theirs)) == len(theirs)


RECEIVER = """
import json, sys, torch
from sglang.srt.utils import patch_torch
from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket
from sglang.srt.utils import MultiprocessingSerializer
opened = []
def open_handle(*arguments):
    opened.append([str(argument) for argument in arguments])
    return torch.load(sys.argv[2])
patch_torch._rebuild_cuda_tensor_modified = open_handle
found = MultiprocessingSerializer.deserialize(open(sys.argv[1]).read())
bucket = FlattenedTensorBucket(flattened_tensor=found["flattened_tensor"], metadata=found["metadata"])
tensors = {name: tensor.float().tolist() for name, tensor in bucket.reconstruct_tensors()}
print(json.dumps([opened, tensors]))
"""


def test_an_ipc_handle_is_opened_on_the_named_device(tmp_path: Path):
    """Checks that the request passes SGLang's restricted unpickler, and that each tensor has the right bytes."""
    sent = [("a", torch.arange(3, dtype=torch.float32)), ("b", torch.arange(5).to(torch.bfloat16))]
    flat, metadata = flatten(sent)
    text = ipc_message(flat, metadata, lambda tensor: (None, (*range(6), "0", *range(7, 15))))
    (tmp_path / "payload").write_text(text)
    torch.save(flat, tmp_path / "flat.pt")
    opened, tensors = json.loads(in_sglang(RECEIVER, str(tmp_path / "payload"), str(tmp_path / "flat.pt")))
    assert opened == [[*map(str, range(6)), "cpu", *map(str, range(7, 15))]]
    assert tensors == {"a": [0, 1, 2], "b": [0, 1, 2, 3, 4]}
