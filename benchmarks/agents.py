"""Counts faults of episodes of agents on two SGLang servers, while weights are replaced and one server is killed.

    make install-sglang .venv-verifiers/installed && python benchmarks/agents.py

Each episode is a loop of 3 to 6 turns with a tool in OpenAI's client, which is in the environment of verifiers; every
second one is streamed. The model is small and random, and a call is added to each of its answers. Counted are the
episodes that are lost or counted twice, the turns whose tokens or log-probs in the rollouts are not those that the
engine gave, the tokens whose log-probs are not those of the weights that the rollout names, and the turns whose
conversation would have other tokens if its text were tokenized again.
"""

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from megatron_sspo.rollout.agents import AgentEpisodes
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.requests.sampler import ServedSampler
from megatron_sspo.types import Endpoint, Prompt, Rollout, RolloutGroup, Sampling
from megatron_sspo.weights.formats.hf_folder import HFFolder

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
sys.path.append(str(Path(__file__).parents[1] / f".venv-verifiers/lib/{VERSION}/site-packages"))
from openai import AsyncOpenAI  # noqa: E402  # pyright: ignore[reportMissingImports]

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
FACTORS = (1.0, 1.2, 0.9, 1.1, 0.8)  # of the weights of each version
GROUP, VOCAB_SIZE, TOLERANCE = 4, 400, 1e-3
FAILED = -1.0  # the reward of an episode whose agent raised; others have their number
TEMPLATE = (
    "<s>{% for message in messages %}{{ message.role }}: {{ message.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TEXT = "the sum of one and two is three, and the tool answers with numbers such as 12, 345 and 6789. user: assistant: "


def build(folder: Path) -> Path:
    """Saves a random model and a byte-level BPE tokenizer."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<s>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([TEXT * 4], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    model = AutoModelForCausalLM.from_config(LlamaConfig(bos_token_id=0, eos_token_id=1, **sizes, **heads))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, *((1.0, 0.1) if parameter.ndim == 1 else (0.0, 0.08)))
    model.save_pretrained(folder)
    return folder


class Loop:
    """An agent that asks 3 to 6 times, and whose reward is the number of its episode."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.ended: list[int] = []
        self.conversations: list[list[Any]] = []

    async def run(self, base_url: str, prompt: Prompt) -> float:
        """Runs one episode."""
        number, messages = next(self.numbers), list(prompt.messages)
        async with AsyncOpenAI(base_url=base_url, api_key="in base_url") as client:
            for turn in range(3 + number % 4):
                options = {"model": "policy", "messages": messages, "tools": [TOOL], "max_tokens": 24}
                messages.append(await (_streamed if number % 2 else _whole)(client, options))
                (call,) = messages[-1]["tool_calls"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"it is {turn}"})
        self.ended.append(number)
        self.conversations.append(messages[:-1])
        return float(number)


async def _whole(client: Any, options: dict[str, Any]) -> dict[str, Any]:
    completion = await client.chat.completions.create(**options)
    return completion.choices[0].message.model_dump(exclude_none=True)


async def _streamed(client: Any, options: dict[str, Any]) -> dict[str, Any]:
    chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **options)]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call.model_dump(exclude={"index"}) for delta in deltas for call in delta.tool_calls or []]
    return {"role": "assistant", "content": "".join(d.content or "" for d in deltas), "tool_calls": calls}


def weights(folder: Path, version: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights of a version."""
    stored = HFFolder(folder)
    return ((name, stored.read(name) * FACTORS[version]) for name in stored.index)


def sync_and_kill(engine: Any, folder: Path, loop: Loop, num_episodes: int) -> None:
    """Replaces the weights four times, and kills a server before the second time."""
    for version in range(1, len(FACTORS)):
        while len(loop.ended) < num_episodes * version / (len(FACTORS) + 1):
            time.sleep(0.05)
        if version == 2:
            first = psutil.Process(engine.pool.servers[0].process.pid)
            for process in (first, *first.children(recursive=True)):
                os.kill(process.pid, signal.SIGKILL)
        engine.load_weights(weights(folder, version), version)
        print(f"{len(loop.ended)} episodes have ended, weights {version}", file=sys.stderr, flush=True)


def spy() -> dict[tuple[int, ...], list[tuple[list[int], list[float]]]]:
    """Makes the sampler record the engine's answers; returns the record: prompt -> tokens and log-probs of answers."""
    seen: dict[tuple[int, ...], list[tuple[list[int], list[float]]]] = {}
    sample = ServedSampler.sample

    async def sample_and_keep(self: Any, prompt: Any, **options: Any) -> Any:
        found = await sample(self, prompt, **options)
        seen.setdefault(tuple(prompt), []).append((list(found.tokens), list(found.log_probs)))
        return found

    ServedSampler.sample = sample_and_keep
    return seen


def give_calls() -> None:
    """Adds a call of the tool to every answer, because a random model writes none."""

    async def with_call(self: Any, text: str, tools: Any) -> Any:
        return text, [("add", f'{{"a": {len(text)}}}')]

    ServedSampler.find_calls = with_call


def turns(group: RolloutGroup, rollout: Rollout) -> Iterator[tuple[tuple[int, ...], list[int], list[float]]]:
    """Yields the prompt, tokens and log-probs of each turn of a rollout."""
    tokens, log_probs = rollout.tokens.tolist(), rollout.rollout_log_probs.tolist()
    starts = [0, *(beyond for _, beyond in rollout.observed)]
    ends = [*(first for first, _ in rollout.observed), len(tokens)]
    for start, end in zip(starts, ends, strict=True):
        if end > start:
            yield (*group.prompt.tokens, *tokens[:start]), tokens[start:end], log_probs[start:end]


def count_faults(groups: list[RolloutGroup], loop: Loop, seen: Any, folder: Path) -> Counter[str]:
    """Compares the rollouts with the record of the engine, the model of each version, and the text."""
    counts: Counter[str] = Counter()
    pairs = [(group, rollout) for group in groups for rollout in group.rollouts]
    numbers = Counter(int(rollout.reward_parts["agent"]) for _, rollout in pairs)
    counts["episodes"] = sum(len(group.episodes) for group in groups)
    counts["episodes failed"] = numbers.pop(int(FAILED), 0)
    counts["episodes lost"] = sum(number not in numbers for number in loop.ended)
    counts["episodes counted twice"] = sum(count > 1 for count in numbers.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policies = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in FACTORS]
    with torch.no_grad():
        for policy, factor in zip(policies, FACTORS, strict=True):
            for parameter in policy.parameters():
                parameter.mul_(factor)
        for group, rollout in pairs:
            counts["episodes under several weights"] += len(rollout.version_spans) > 1
            for prompt, tokens, log_probs in turns(group, rollout):
                counts["turns"] += 1
                counts["turns that are not the engine's"] += (tokens, np.float32(log_probs).tolist()) not in [
                    (theirs, np.float32(values).tolist()) for theirs, values in seen.get(prompt, [])
                ]
            whole = torch.tensor([[*group.prompt.tokens, *rollout.tokens.tolist()]])
            own = torch.tensor(rollout.response_mask())
            expected = torch.stack([_log_probs(policy, whole, len(rollout.tokens))[own] for policy in policies])
            spans = rollout.version_spans or ((rollout.policy_version, rollout.num_response_tokens),)
            versions = torch.tensor([version for version, count in spans for _ in range(count)])
            found = torch.tensor(rollout.rollout_log_probs)[own]
            counts["tokens"] += len(found)
            far = (found - expected.gather(0, versions[None])[0]).abs() > TOLERANCE
            counts["tokens whose log-probs are not the model's"] += int(far.sum())
    recorded = {(*group.prompt.tokens, *rollout.tokens.tolist()) for group, rollout in pairs}
    for messages in loop.conversations:
        for end in range(len(messages), 0, -2):
            text = tokenizer.apply_chat_template(messages[:end], tokenize=False).removesuffix("<eos>")
            again = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
            counts["turns that would differ if tokenized again"] += not any(
                again == tokens[: len(again)] for tokens in recorded
            )
    return counts


def _log_probs(policy: Any, whole: torch.Tensor, num_tokens: int) -> torch.Tensor:
    logits = policy(whole).logits[0].float()
    return logits.log_softmax(-1)[:-1].gather(-1, whole[0, 1:, None])[-num_tokens:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    options: Any = parser.parse_args()
    seen, loop = spy(), Loop()
    give_calls()
    with tempfile.TemporaryDirectory() as temporary:
        folder = build(Path(temporary) / "model")
        prompts = [
            Prompt(
                id=str(number), tokens=(0,), answer="", messages=({"role": "user", "content": f"add {number} and 2"},)
            )
            for number in range(options.episodes // GROUP)
        ]
        engine = sglang.engine(folder, num_servers=2, run_folder=Path(temporary), verify_every=1)
        agents = AgentEpisodes(loop, Endpoint(max_episodes=32, failure_reward=FAILED), max_prompt_tokens=64)
        try:
            engine.load_weights(weights(folder, 0), 0)
            start = time.monotonic()
            sampling = Sampling(max_tokens=600)
            generation = engine.start(prompts, sampling, group_size=GROUP, seed=0, environment=agents)
            found: dict[int, RolloutGroup] = {}
            sync_and_kill(engine, folder, loop, options.episodes)
            while completed := generation.wait():
                found.update(completed)
            seconds = time.monotonic() - start
        finally:
            agents.close()
            engine.close()
        counts = count_faults([found[place] for place in sorted(found)], loop, seen, folder)
    print(f"{seconds:.0f} s, with {len(FACTORS) - 1} syncs and one of two servers killed")
    for name, count in counts.items():
        print(f"{count:>7}  {name}")


if __name__ == "__main__":
    main()
