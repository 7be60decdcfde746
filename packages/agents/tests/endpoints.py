"""An endpoint with one episode, whose policy is a stand-in, and clients that talk to it over aiohttp."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sspo_agents.protocol import Limits, Model, Sampled
from sspo_agents.server import EndpointServer
from sspo_agents.session import Session
from sspo_agents.template import ChatTemplate

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 +-*/=<>.,:?!()\n"
PAD, EOS = 0, 1
CHAT_TEMPLATE = (
    "!{% if tools %}tools {{ tools | length }}.{% endif %}{% for message in messages %}{{ message.role[0] }}:"
    "{{ message.content }}{% for call in message.tool_calls or [] %}={{ call.function.name }}{% endfor %}<eos>"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def tokenizer(*, knows_all: bool = False) -> Any:
    """Returns a tokenizer of one token per character; if it is to know all of them, the others are padding."""
    vocabulary = {"<pad>": PAD, "<eos>": EOS} | {character: 2 + i for i, character in enumerate(CHARACTERS)}
    characters = Tokenizer(models.WordLevel(vocabulary, "<pad>" if knows_all else "<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    found = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>")
    found.chat_template = CHAT_TEMPLATE
    return found


def model(tokenizer: Any, max_tokens: int = 400) -> Model:
    """Returns the text side of a model with this tokenizer."""

    def render(messages: Sequence[Any], tools: Sequence[Any], is_answered: bool) -> str:
        return tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=not is_answered
        )

    def decode(tokens: Sequence[int]) -> str:
        return tokenizer.decode([token for token in tokens if token not in (PAD, EOS)])

    return Model(tokenizer, render, decode, vocab_size=10_000, max_tokens=max_tokens)


class Fixed:
    """A sampler that answers the same each time, after it is allowed to."""

    takes_schemas = True

    def __init__(self, text: str = "sure", seconds: float = 0.0) -> None:
        self.tokens = [*tokenizer()(text, add_special_tokens=False)["input_ids"], EOS]
        self.seconds, self.num_cancelled = seconds, 0
        self.prompts: list[list[int]] = []
        self.asked: list[tuple[int, tuple[str, ...], str]] = []
        self.text: str | None = None  # what is parsed: the tokenizer has no quotes, braces and underscores

    async def sample(self, prompt, *, max_tokens, stop, number, schema):
        self.prompts.append(list(prompt))
        self.asked.append((max_tokens, stop, schema))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return Sampled(self.tokens, [-1.0] * len(self.tokens), "stop", [(0, len(self.tokens))])

    async def split_reasoning(self, text):
        return None

    async def find_calls(self, text, tools):
        return None


def serve(do: Any, sampler: Fixed | None = None, *, knows_all: bool = False, **limits: Any) -> Any:
    """Runs `do(base_url, session, server)` against an endpoint with one episode."""

    async def run() -> Any:
        server = EndpointServer("127.0.0.1")
        await server.listen()
        chosen, policy = tokenizer(knows_all=knows_all), sampler or Fixed()
        template = ChatTemplate(model(chosen))
        decode = template.model.decode
        object.__setattr__(template.model, "decode", lambda tokens: policy.text or decode(tokens))
        session = Session(policy, template, Limits(**limits))
        try:
            return await do(server.add(session), session, server)
        finally:
            await server.remove(session)
            await server.close()

    return asyncio.run(run())


async def post(base_url: str, content: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    """Sends a request for a completion, and returns the status and the body."""
    url = f"{base_url}/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=content, **options) as response:
        return response.status, await response.json()


async def say(base_url: str, messages: list[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Returns the message of a completion, which must succeed."""
    status, body = await post(base_url, {"messages": messages, "max_tokens": 8, **options})
    assert status == 200, body
    return body["choices"][0]["message"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
