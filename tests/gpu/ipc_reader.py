"""Opens a message of the transport "ipc" as a server does, and prints the SHA-256 of the bytes: ipc_reader.py MESSAGE.

Two modules stand in for SGLang's, which a message names and whose environment is another.
"""

import base64
import hashlib
import pickle
import sys
from types import ModuleType

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor


class FlattenedTensorMetadata:
    """SGLang's description of a tensor in a bucket."""


def _rebuild_cuda_tensor_modified(*arguments):
    """Opens a handle whose device is given by its id; torch's own function wants the device's number here."""
    position = 6
    (number,) = [
        index
        for index in range(torch.cuda.device_count())
        if str(torch.cuda.get_device_properties(index).uuid) == arguments[position]
    ]
    return rebuild_cuda_tensor(*arguments[:position], number, *arguments[position + 1 :])


def main() -> None:
    for name in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.weight_sync"):
        sys.modules[name] = ModuleType(name)
    opener, bucket = ModuleType("sglang.srt.utils.patch_torch"), ModuleType("sglang.srt.weight_sync.tensor_bucket")
    opener._rebuild_cuda_tensor_modified = _rebuild_cuda_tensor_modified
    bucket.FlattenedTensorMetadata = FlattenedTensorMetadata
    sys.modules |= {opener.__name__: opener, bucket.__name__: bucket}
    message = pickle.loads(base64.b64decode(sys.stdin.read()))
    flat = message["flattened_tensor"]
    assert flat.is_cuda
    print(hashlib.sha256(flat.cpu().view(torch.uint8).numpy().tobytes()).hexdigest(), len(message["metadata"]))


if __name__ == "__main__":
    main()
