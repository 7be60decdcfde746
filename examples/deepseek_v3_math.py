"""Trains DeepSeek-V3, of 671 billion parameters, on DAPO's mathematics with SSPO, in the paper's setting.

megatron-sspo train examples/deepseek_v3_math.py
"""

from dataclasses import replace

from megatron_sspo.paper import DAPO_MATH, paper
from megatron_sspo.run import Parallel, Run


def recipe() -> Run:
    """Uses 256 GPUs: 8 stages of 6 to 8 layers, attention cut over 4 of a stage's 32 GPUs, experts over all of them.

    Microbatches of two sequences fill the pipeline four times in an update.
    """
    run = paper(
        "deepseek_v3_math",
        "DeepSeek-V3",
        DAPO_MATH,
        Parallel(data=8, tensor=4, sequence=True, pipeline=8, expert=32),
        evaluation=("aime24", "aime25", "math-500"),
    )
    stages = {"num_layers_in_first_pipeline_stage": 7, "num_layers_in_last_pipeline_stage": 6}
    return replace(run, tokens_per_microbatch=4096, megatron={**run.megatron, **stages})
