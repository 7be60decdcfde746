"""Layouts whose memory is measured: two processes each, full microbatches, a model of three million parameters."""

import tiny_policy
from transformers import Qwen3MoeConfig

from megatron_sspo.objective import sspo
from megatron_sspo.run import Parallel, Prompts, Rollouts, Run
from megatron_sspo.types import Sampling

PROMPT, RESPONSE, GROUP = 32, 96, 2
TOKENS = 1024  # of a microbatch: eight sequences
TOKENS_SHARED = 4 * (PROMPT - 1 + GROUP * (1 + RESPONSE))  # of eight sequences that share prompts two by two
OBJECTIVE = sspo()

CONFIG = Qwen3MoeConfig(
    architectures=["Qwen3MoeForCausalLM"],
    vocab_size=1000, hidden_size=128, intermediate_size=256, moe_intermediate_size=96, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=48, num_experts=16, num_experts_per_tok=4,
    norm_topk_prob=True, max_position_embeddings=256, bos_token_id=None, eos_token_id=1, pad_token_id=None,
)  # fmt: skip

_RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _run(parallel: Parallel, dtype: str, *, tokens: int = TOKENS, share_prompts: bool = False, **fields: object) -> Run:
    return tiny_policy.make_run(
        parallel,
        tokens=tokens,
        dtype=dtype,
        share_prompts=share_prompts,
        prompts=Prompts(source="", max_tokens=PROMPT),
        rollouts=Rollouts(group_size=GROUP, sampling=Sampling(max_tokens=RESPONSE)),
        **fields,
    )


LAYOUTS = {
    "data 2, expert 2, bfloat16": _run(Parallel(data=2, expert=2), "bfloat16"),
    "tensor 2 with sequence parallelism, float32": _run(Parallel(tensor=2, sequence=True), "float32"),
    "pipeline 2, recomputed, bfloat16": _run(Parallel(pipeline=2), "bfloat16", megatron=_RECOMPUTE),
    "data 2, expert 2, shared prompts, float32": _run(
        Parallel(data=2, expert=2), "float32", tokens=TOKENS_SHARED, share_prompts=True
    ),
}


def sequences_of(run: Run) -> int:
    """Returns the size of a batch with two full microbatches per data-parallel rank, which fill two pipeline stages."""
    return 2 * run.parallel.data * 8
