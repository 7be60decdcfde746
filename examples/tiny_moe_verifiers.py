"""Trains the model of examples/tiny_moe.py in an environment of verifiers.

    make .venv-verifiers/installed
    megatron-sspo train examples/tiny_moe_verifiers.py

The environment, examples/agents/verifiers_additions.py, has the sums and scores the answers.
"""

from dataclasses import replace
from pathlib import Path

import tiny_moe

from megatron_sspo.run import Evaluation, HeldOut, Prompts, Run

HERE = Path(__file__).parent
OPTIONS = {
    "environment": {"taskset": {"id": "verifiers-additions"}, "agent": {"runtime": {"type": "subprocess"}}},
    "python": str(HERE.parent / ".venv-verifiers/bin/python"),
    "folder": str(HERE / "agents"),
}


def recipe() -> Run:
    """Returns the run of tiny_moe.py with other prompts and rewards; its evaluation has single turns and no agent."""
    run = tiny_moe.recipe()
    assert run.warm_start is not None
    held_out = replace(tiny_moe.additions(size=256, split="held_out"), template="chat")
    return replace(
        run,
        name="tiny_moe_verifiers",
        warm_start=replace(run.warm_start, prompts=replace(run.warm_start.prompts, template="chat")),
        prompts=Prompts(source="verifiers", options=OPTIONS, max_tokens=16, without=(held_out,)),
        num_updates=60,
        rollouts=replace(run.rollouts, agent="verifiers", agent_options=OPTIONS),
        evaluation=Evaluation(
            sets={
                "additions": HeldOut(prompts=held_out, reward="math", reward_options={"exact": True}, environment="")
            },
            every=20,
        ),
    )
