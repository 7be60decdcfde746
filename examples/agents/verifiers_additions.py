"""The sums of examples/tiny_moe.py as an environment of verifiers 0.4, for examples/tiny_moe_verifiers.py."""

import itertools
import random

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult


class Numbers(vf.TaskData):
    sum: int = 0


class Addition(vf.Task[Numbers]):
    @vf.reward(weight=0.9)
    async def answer(self, trace: vf.Trace) -> float:
        return float(f"<answer>{self.data.sum}</answer>" in (trace.last_reply or ""))

    @vf.reward(weight=0.1)
    async def form(self, trace: vf.Trace) -> float:
        reply = (trace.last_reply or "").strip()
        return float(reply.startswith("<answer>") and reply.endswith("</answer>"))


class Config(vf.TasksetConfig):
    num_tasks: int = 8000


class Additions(vf.Taskset[Addition, Config]):
    """Sums of two numbers up to 99."""

    def load(self):
        pairs = random.Random(0).sample([*itertools.product(range(100), repeat=2)], self.config.num_tasks)
        for a, b in pairs:
            yield Addition(Numbers(prompt=f"{a}+{b}=", sum=a + b), self.config.task)


class OneQuestion(vf.Harness[vf.HarnessConfig]):
    """Sends the task's prompt, and ends with the answer."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_MCP, NEEDS_CONTAINER, EXECUTES_CODE = False, False, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=[{"role": "user", "content": data.prompt}])
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Additions", "OneQuestion"]
