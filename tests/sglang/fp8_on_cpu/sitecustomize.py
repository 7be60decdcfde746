"""Lets SGLang compute with FP8 weights on a CPU, for which it has kernels where there is AMX alone.

Layers multiply by the weights that values and scales stand for. Loading, names, shapes and checksums are SGLang's own.
An interpreter with this folder in PYTHONPATH imports this file at its start.
"""

import runpy
from types import SimpleNamespace

_run_module = runpy.run_module


def _run_with_fp8(*arguments, **options):
    import torch
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
    from sglang.srt.layers.quantization import fp8
    from sglang.srt.layers.quantization.fp8_utils import block_quant_dequant

    def whole(values, scales, like):
        return block_quant_dequant(values, scales, [128, 128], like.dtype)

    def linear(self, layer, x, bias=None):
        return torch.nn.functional.linear(x, whole(layer.weight, layer.weight_scale_inv, x), bias)

    def experts(self, layer, dispatch_output):
        x = dispatch_output.hidden_states
        plain = SimpleNamespace(
            w13_weight=whole(layer.w13_weight, layer.w13_weight_scale_inv, x),
            w2_weight=whole(layer.w2_weight, layer.w2_weight_scale_inv, x),
            num_experts=layer.num_experts,
            num_local_experts=layer.num_local_experts,
        )
        found = moe_forward_native(plain, x, dispatch_output.topk_output, self.moe_runner_config)
        return StandardCombineInput(hidden_states=found)

    fp8._is_cpu = False  # else its end of loading insists on AMX
    fp8.Fp8LinearMethod.apply, fp8.Fp8MoEMethod.apply = linear, experts
    return _run_module(*arguments, **options)


runpy.run_module = _run_with_fp8
