"""Converts a Hugging Face folder to a Megatron `torch_dist` checkpoint, in one process without a GPU or a model.

    python tools/convert_hf_to_megatron.py SRC DST [--dtype bfloat16] [--config DIR] [--threads N]

It is the same as `megatron-sspo convert --to megatron`; docs/checkpoints.md lists its guarantees.
"""

import sys

from megatron_sspo.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["convert", "--to", "megatron", *sys.argv[1:]]))
