"""Training of the policy with Megatron: microbatches -> new weights. Only this folder and `checkpoint` import
megatron.core.

On a machine without CUDA, importing this package first patches torch so that Megatron-Core runs on CPU and gloo
(`without_cuda/`). With CUDA, torch is not patched, and the import raises a UserError if Transformer Engine is installed
and does not work.
"""

import torch

from megatron_sspo.policy.with_cuda.installed import has_transformer_engine


def _replace_what_is_missing() -> None:
    if not torch.cuda.is_available():
        from megatron_sspo.policy.without_cuda import patches

        patches.install()
    if not has_transformer_engine():  # asked before Megatron imports it, whose error would not say what to do
        from megatron_sspo.policy.without_cuda import adam

        adam.install_without_apex_or_te()


_replace_what_is_missing()
