"""Sums with a tool that adds: an environment of verifiers 0.4 that needs no network. docs/agents.md has its options."""

import json
from contextlib import AsyncExitStack

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult


class Add(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """The sum of a and b."""
        return str(a + b)


class Numbers(vf.TaskData):
    sum: int = 0


class Sum(vf.Task[Numbers]):
    @vf.reward
    async def answer(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == str(self.data.sum))

    @vf.reward(weight=0.1)
    async def used_tool(self, trace: vf.Trace) -> float:
        return float(any(message.role == "tool" for message in trace.messages))


class Config(vf.TasksetConfig):
    num_tasks: int = 8
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for number in range(self.config.num_tasks):
            a, b = number % 10, 7 * number % 10
            yield Sum(Numbers(prompt=f"What is {a} + {b}?", sum=a + b), self.config.task)

    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Add(config.tools)]


class ToolLoop(vf.Harness[vf.HarnessConfig]):
    """A loop with tools in this process, where verifiers' own harnesses start a program for each episode."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_MCP, NEEDS_CONTAINER, EXECUTES_CODE = True, True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        async with AsyncExitStack() as stack:
            tools, names, servers = await connect_mcp(config, stack)
            client = await stack.enter_async_context(AsyncOpenAI(base_url=endpoint, api_key=secret))
            for _ in range(4):
                completion = await client.chat.completions.create(model=ctx.model, messages=messages, tools=tools)
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or []:
                    function = call.function
                    result = await call_mcp(servers, names, function.name, json.loads(function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                if not message.tool_calls:
                    break
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Sums", "ToolLoop"]

if __name__ == "__main__":
    Add.run()
