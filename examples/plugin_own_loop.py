"""SSPO in your own Megatron training loop: three names from this package, the rest from Megatron. See docs/plugin.md.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 examples/plugin_own_loop.py

It uses two data-parallel processes, a small GPTModel, and random rollouts.
"""

import random
from typing import Any

from megatron_sspo.objective import sspo
from megatron_sspo.policy.plugin import policy_step, pack_rollouts  # before megatron.core: it may run on a CPU

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

from megatron_sspo.policy.layers.attention import PackedAttention  # Transformer Engine's supports packing as well

VOCAB_SIZE = 96


def build_model() -> Any:
    sizes: Any = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128}
    config = TransformerConfig(**sizes, hidden_dropout=0, attention_dropout=0, gradient_accumulation_fusion=False)
    config.finalize_model_grads_func = finalize_model_grads  # pyright: ignore
    spec: Any = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    embeddings: Any = {"position_embedding_type": "rope", "share_embeddings_and_output_weights": False}
    model = GPTModel(config, spec, vocab_size=VOCAB_SIZE, max_sequence_length=64, **embeddings).cuda()
    return DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)


def sample(count: int) -> list[dict[str, Any]]:
    """Returns random prompts and responses in the format that your engine would return; even tokens are rewarded."""
    draw, found = random.Random(0), []
    for _ in range(count):
        prompt, response = ([draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(2, 12))] for _ in "pr")
        advantage = sum(token % 2 == 0 for token in response) / len(response) - 0.5
        found.append({"prompt": prompt, "response": response, "advantage": advantage, "old": [-4.5] * len(response)})
    return found


def gradient(model: Any, rollouts: list[dict[str, Any]], per_microbatch: int = 4) -> float:
    """Runs forward and backward over this rank's share of the batch, and returns its part of the loss."""
    mine = rollouts[parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()]
    packed = [pack_rollouts(mine[i : i + per_microbatch]) for i in range(0, len(mine), per_microbatch)]
    hook = policy_step(sspo(), num_sequences=len(rollouts), num_microbatches=len(packed), vocab_size=VOCAB_SIZE)
    model.zero_grad_buffer()
    reports: Any = get_forward_backward_func()(
        forward_step_func=hook,
        data_iterator=iter(packed),
        model=model,
        num_microbatches=len(packed),
        seq_length=64,
        micro_batch_size=1,
        forward_only=False,
    )
    return sum(float(report["loss"]) for report in reports) / len(rollouts)


if __name__ == "__main__":
    torch.cuda.set_device(dist.get_node_local_rank())  # pyright: ignore
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    model = build_model()
    optimizer: Any = get_megatron_optimizer(OptimizerConfig(lr=1e-3, use_distributed_optimizer=True), [model])
    for update in range(5):
        loss = gradient(model, sample(32))
        norm = optimizer.step()[1]
        print(f"rank {dist.get_rank()}  update {update}  loss of its share {loss:+.5f}  gradient norm {norm:.5f}")
    dist.destroy_process_group()
