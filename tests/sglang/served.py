"""Requests, reference models and checks for the tests with real servers."""

import time

import torch

from megatron_sspo.types import Prompt, Sampling
from megatron_sspo.weights.formats.hf_folder import HFFolder
from tests.policy.tiny_policy import TEMPERATURE, log_probs, reference

PROMPTS = [Prompt(id=str(n), tokens=(n + 2, n + 3, n + 4), answer="") for n in range(12)]
SAMPLING = Sampling(max_tokens=110, temperature=TEMPERATURE)
GROUP = 4


def weights(folder, factor=1.0):
    """Yields a model's weights times a factor, which gives different weights with a known reference (`scaled`)."""
    stored = HFFolder(folder)
    return ((name, stored.read(name) * factor) for name in stored.shapes())


def scaled(folder, factor):
    """Returns the Transformers model with all weights multiplied by a factor."""
    model = reference(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def check_log_probs(folder, groups, factor=1.0):
    """Checks that the servers' log-probs are those of the model, up to a near tie of a router."""
    model = scaled(folder, factor)
    num_tokens = num_compared = 0
    with torch.no_grad():
        for group in groups:
            for rollout in group.rollouts[:2]:
                expected = log_probs(model, group.prompt, rollout)
                same = slice(_num_before_tie(model, group.prompt, rollout))
                found = torch.tensor(rollout.rollout_log_probs)
                torch.testing.assert_close(found[same], expected[same], rtol=0, atol=1e-4)
                num_tokens, num_compared = num_tokens + len(found), num_compared + len(found[same])
    assert num_compared > 0.5 * num_tokens


def _num_before_tie(model, prompt, rollout):
    """Returns the number of a response's tokens before two experts are so close that rounding may exchange them."""
    if not (chosen := getattr(model.config, "num_experts_per_tok", 0)):
        return len(rollout.tokens)
    tokens = torch.tensor([[*prompt.tokens, *rollout.tokens.tolist()]])
    scores = torch.stack(model(tokens, output_router_logits=True).router_logits).sort(-1, descending=True).values
    gaps = (scores[..., chosen - 1] - scores[..., chosen]).amin(0)
    ties = (gaps < 1e-5).nonzero()
    return max(0, int(ties[0]) - len(prompt.tokens) + 1) if len(ties) else len(rollout.tokens)


def check_spans(models, groups, *, atol=1e-4, only_first=False):
    """Checks that the log-prob of every token is that of the weights that its span names.

    Args:
        models: the model of each version.
        only_first: whether to check each rollout's first span alone.

    Returns:
        The number of rollouts of several versions.
    """
    num_mixed = 0
    for group in groups:
        for rollout in group.rollouts:
            spans = rollout.version_spans or ((rollout.policy_version, rollout.num_response_tokens),)
            assert sum(count for _, count in spans) == rollout.num_response_tokens
            assert [version for version, _ in spans] == sorted({version for version, _ in spans})
            assert rollout.policy_version == spans[0][0]
            num_mixed += len(spans) > 1
            mask = torch.tensor(rollout.response_mask())
            with torch.no_grad():
                expected = torch.stack([log_probs(model, group.prompt, rollout)[mask] for model in models])
            versions = torch.tensor([version for version, count in spans for _ in range(count)])
            end = spans[0][1] if only_first else len(versions)
            found = torch.tensor(rollout.rollout_log_probs)[mask]
            expected = expected.gather(0, versions[None])[0]
            torch.testing.assert_close(found[:end], expected[:end], rtol=0, atol=atol)
    return num_mixed


def check(groups, versions, *, prompts=PROMPTS, group_size=GROUP):
    """Checks that every response occurs exactly once."""
    assert [group.prompt for group in groups] == list(prompts)
    assert all(len(group.rollouts) == group_size for group in groups)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert {rollout.policy_version for rollout in rollouts} <= versions
    long = [
        tuple(rollout.tokens) for rollout in rollouts if len(rollout.tokens) > 20
    ]  # short ones may repeat by chance
    assert len(long) > len(rollouts) / 2 and len(set(long)) == len(long), "a response was counted twice"


def generate(engine, prompts, sampling, *, group_size, seed, environment=None):
    """Generates all groups, in the order of the prompts. Raises the errors of `wait`."""
    generation = engine.start(prompts, sampling, group_size=group_size, seed=seed, environment=environment)
    found = {}
    while groups := generation.wait():
        found.update(groups)
    return [found[number] for number in range(len(prompts))]


def num_running(engine):
    """Returns the number of running and waiting requests of the only server."""
    (server,) = engine.pool.servers
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in _loads(engine, server))


def until_in_the_middle(engine, server=None, *, num_tokens=250):
    """Waits until the running responses of a server (by default the first) have more than `num_tokens` tokens.

    A fast machine generates all responses within a second, so this looks often, and soon after their beginning.
    """
    server = server or engine.pool.servers[0]
    until(lambda: sum(load["num_used_tokens"] for load in _loads(engine, server)) > num_tokens, 30, pause=0.02)


def _loads(engine, server):
    return engine._run(server.client.get("/v1/loads", seconds=5))["loads"]


def until(condition, seconds, *, pause=0.1):
    """Waits until the condition is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
