"""Trains Qwen3-8B on DAPO's mathematics with thoughts of up to 128k tokens, by YaRN.

megatron-sspo train examples/qwen3_8b_128k.py

The model folder is a copy of Qwen3-8B whose config.json has, for trainer and servers, max_position_embeddings 131072
and rope_scaling {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}.
"""

from dataclasses import replace

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe() -> Run:
    """Uses 8 GPUs, which share the tokens and the heads of each sequence."""
    length = 128 * 1024
    run = paper(
        "qwen3_8b_128k",
        "Qwen3-8B-128k",
        DAPO_MATH,
        Parallel(tensor=8, sequence=True),
        max_tokens=length - DAPO_MATH.max_tokens,
        evaluation=("aime24", "aime25", "math-500"),
    )
    return replace(run, tokens_per_microbatch=length, rollouts=replace(run.rollouts, prompts_per_update=16))
