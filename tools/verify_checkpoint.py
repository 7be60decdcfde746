"""Compares two model folders, Hugging Face's or Megatron's, tensor by tensor and bit by bit.

    python tools/verify_checkpoint.py A B [--config DIR]

Exit code 0: equal. 1: the differing tensors are listed. The same as `megatron-sspo verify`.
"""

import sys

from megatron_sspo.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]]))
