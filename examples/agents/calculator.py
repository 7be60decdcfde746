"""An agent with a calculator: `--set rollouts.agent=examples/agents/calculator.py:Calculator`; `pip install openai`.

The model needs a chat template with tools, such as Qwen3's. The run's reward scores the last answer. docs/agents.md
"""

import json
import operator

from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
NUMBER, OPERATOR = {"type": "number"}, {"type": "string", "enum": list(OPERATORS)}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "operator": OPERATOR, "b": NUMBER}}
TOOL = {"type": "function", "function": {"name": "calculate", "description": "a operator b", "parameters": PARAMETERS}}


class Calculator:
    """Answers calls of its tool until the model makes none."""

    def __init__(self, max_turns: int = 4) -> None:
        self.max_turns = max_turns

    async def run(self, base_url, prompt):
        """Answers the question, and leaves the reward to the run's `reward`."""
        messages = list(prompt.messages)
        async with AsyncOpenAI(base_url=base_url, api_key="in base_url") as client:
            for _ in range(self.max_turns):
                completion = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or []:
                    result = calculate(call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                if not message.tool_calls:
                    break


def calculate(arguments: str) -> str:
    """Returns the result of a call, or the error as the model is to see it."""
    try:
        found = json.loads(arguments)
        return str(OPERATORS[found["operator"]](float(found["a"]), float(found["b"])))
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        return f"error: {error!r}"
