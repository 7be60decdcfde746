"""Converts a Megatron `torch_dist` checkpoint or a run's to a Hugging Face folder, in one process without a GPU.

    python tools/convert_megatron_to_hf.py SRC DST [--dtype bfloat16] [--config DIR] [--threads N]

It builds no model. It is the same as `megatron-sspo convert --to hf`; docs/checkpoints.md lists its guarantees.
"""

import sys

from megatron_sspo.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["convert", "--to", "hf", *sys.argv[1:]]))
