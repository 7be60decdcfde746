"""Runs that learn nothing say why, once, with a response as the model wrote it; the first example run says nothing."""

import json
from pathlib import Path

import pytest

from tests.rollout import talking_models

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).with_name("plugins.py")
SETTINGS = {
    "begins or ends with the tags": ["reward_options.format=0"],
    "was cut at rollouts.sampling.max_tokens=1 tokens": ["rollouts.sampling.max_tokens=1"],
    "every response is empty": [],
    "has the reward 0.5: the reward does not tell them apart": [],
    "every episode failed": ["prompts.template=chat", "prompts.max_tokens=16", "rollouts.agent=AGENT"],
}
AGENT = '''
import aiohttp


class Long:
    """Asks, and then asks with more than the conversation may have."""

    async def run(self, base_url, prompt):
        async with aiohttp.ClientSession(raise_for_status=True) as client:
            for text in ("", "a" * 1000):
                body = {"messages": [*prompt.messages, {"role": "user", "content": text}]}
                async with client.post(f"{base_url}/chat/completions", json=body) as answer:
                    await answer.json()
'''


@pytest.mark.parametrize("cause", SETTINGS)
def test_a_run_that_learns_nothing_says_why(workshop, cause) -> None:
    settings = [f"reward={PLUGINS}:constant", "num_updates=6", *SETTINGS[cause]]
    config = workshop.folder / "config"
    if "empty" in cause:  # every token ends a response
        vocab_size = json.loads((config / "config.json").read_text())["vocab_size"]
        (config / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(vocab_size)]}))
    if "episode" in cause:
        (workshop.folder / "long.py").write_text(AGENT)
        settings[-1] = settings[-1].replace("AGENT", f"{workshop.folder}/long.py:Long")
        tokenizer = json.loads((config / "tokenizer_config.json").read_text())
        tokenizer["chat_template"] = talking_models.CHAT_TEMPLATE.removeprefix("!")
        (config / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    done = workshop.run("train", f"{workshop.recipe}:bare", *(word for each in settings for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "so nothing is learned" in line]
    assert cause in line and "as the model wrote it" in line, line
    assert "update 4 " in done.stdout.partition(line)[2], "before the end of the second cycle is shown"


def test_the_first_example_run_learns(workshop) -> None:
    settings = ["--set", "num_updates=4", "--set", "evaluation=none", "--set", f"output={workshop.folder}"]
    done = workshop.run("train", "examples/tiny_moe.py", *settings)
    assert done.returncode == 0, done.stderr
    assert "nothing is learned" not in done.stdout
