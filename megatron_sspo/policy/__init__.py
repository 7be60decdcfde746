"""Training of the policy with Megatron: microbatches -> new weights. Only this folder and `checkpoint` import
megatron.core.

On a machine without CUDA, importing this package first patches torch so that Megatron-Core runs on CPU and gloo
(`without_cuda/`). With CUDA, torch is not patched, and the import raises a UserError if Transformer Engine is installed
and does not work.
"""

import torch

from megatron_sspo.policy.with_cuda.installed import has_transformer_engine
from megatron_sspo.policy.without_cuda import adam, patches, te_general_gemm

if not torch.cuda.is_available():
    patches.install()
else:
    has_transformer_engine()  # before Megatron imports it, whose error would not say what to do
adam.install_without_apex_or_te()
te_general_gemm.define_without_te()
