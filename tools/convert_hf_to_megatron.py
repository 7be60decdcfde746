"""A Hugging Face folder to a Megatron `torch_dist` checkpoint: no GPU, no model, one process.

    python tools/convert_hf_to_megatron.py SRC DST [--dtype bfloat16] [--config DIR] [--threads N]

The same as `megatron-sspo convert --to megatron`; docs/checkpoints.md says what it guarantees.
"""

import sys

from megatron_sspo.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["convert", "--to", "megatron", *sys.argv[1:]]))
