"""Routers run without Transformer Engine, also on a machine with a GPU."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("has_gpu", [False, True])
def test_name_is_defined(has_gpu):
    program = (
        f"import torch; torch.cuda.is_available = lambda: {has_gpu}\n"
        "import megatron_sspo.policy, megatron.core.transformer.moe.moe_utils as utils; utils.te_general_gemm"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
