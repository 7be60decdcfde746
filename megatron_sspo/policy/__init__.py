"""Microbatches -> a new policy. The only folder that imports megatron.core.

Importing it on a machine without CUDA first lets Megatron-Core run on CPU and gloo (`cpu.py`); with CUDA nothing of
torch is touched.
"""

import torch

from megatron_sspo.policy import adam, cpu, te_general_gemm

if not torch.cuda.is_available():
    cpu.install()
adam.use_where_apex_and_transformer_engine_are_missing()
te_general_gemm.define_where_transformer_engine_is_missing()
