"""Compares two model folders (Hugging Face or Megatron), tensor by tensor and bit by bit.

    python tools/verify_checkpoint.py A B [--config DIR]

The exit code is 0 if they are equal; otherwise it is 1, and the differing tensors are printed. It is the same as
`megatron-sspo verify`.
"""

import sys

from megatron_sspo.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]]))
