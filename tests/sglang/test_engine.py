"""Checks a server's log-probs against the trainer's after every sync, and access to the server's weights."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.servers.client import Client, ServerError
from megatron_sspo.run import Optimizer
from megatron_sspo.types import Prompt
from tests.policy.tiny_policy import ROUTERS, TEMPERATURE, make_run
from tests.sglang import served

PROMPTS = [Prompt(id=str(n), tokens=tuple(range(n + 2, 2 * n + 5)), answer="") for n in range(6)]


@pytest.fixture(scope="module")
def policies(folders, device):
    made = {}

    def of(kind):
        if kind not in made:
            replay = "none" if kind == "dense" else "R2"
            run = make_run(optimizer=Optimizer(lr=3e-3, clip_grad=1.0), routing_replay=replay)
            made[kind] = Policy(run, folders[kind], device)
        return made[kind]

    return of


def generate(engine, policy, **changes):
    sampling = replace(policy.run.rollouts.sampling, max_tokens=24, **changes)
    return served.generate(engine, PROMPTS, sampling, group_size=4, seed=0)


def largest_difference(policy, groups):
    """Returns the largest difference of log-probs but that of one response, whose router may have had a near tie.

    Two experts within rounding of each other may be exchanged, and all later tokens differ then.
    """
    of_responses = [
        max(abs(a - b) for a, b in zip(rollout.old_log_probs, rollout.rollout_log_probs, strict=True))
        for group in policy.old_log_probs(*policy.scatter([groups]))
        for rollout in group.rollouts
    ]
    return sorted(of_responses)[-2]


@pytest.mark.parametrize("kind", ["moe", "dense", "glm4", "mla"])
def test_log_probs_are_the_trainers_after_every_sync(engines, policies, folders, monkeypatch, kind):
    """Sends each version in many small buckets; the last one goes through process groups that exist already."""
    engine, policy = engines(kind), policies(kind)
    assert policy.run.rollouts.sampling.temperature == TEMPERATURE
    options = replace(engine._options, bucket_bytes=50_000)
    names = ("tensor", "disk", "distributed")
    transports = {name: sglang._build_transport(replace(options, transport=name), folders[kind]) for name in names}
    stale = None
    for version, name in enumerate([*transports, "distributed"]):
        monkeypatch.setattr(engine, "_transport", transports[name])
        engine.load_weights(policy.weights(), version)
        groups = generate(engine, policy)
        assert [group.prompt for group in groups] == PROMPTS
        assert {rollout.policy_version for group in groups for rollout in group.rollouts} == {version}
        assert all(len(group.rollouts) == 4 and all(len(r.tokens) for r in group.rollouts) for group in groups)
        assert largest_difference(policy, groups) < 1e-4
        if stale is not None:  # the update is large enough to detect old weights
            assert largest_difference(policy, stale) > 1e-3
        stale = groups
        advantages = [[replace(r, advantage=float(n % 2) - 0.5) for n, r in enumerate(g.rollouts)] for g in groups]
        batch = [replace(g, rollouts=rollouts) for g, rollouts in zip(groups, advantages, strict=True)]
        policy.update(*policy.scatter([batch]), sspo())
    transports["distributed"].close()
    assert not list((engine._options.run_folder / "servers").glob("weights-*")), "weights were left on the disk"


@pytest.mark.parametrize("kind", ["moe", "glm4", "mla"])
def test_routes_are_those_that_the_trainer_takes(engines, policies, kind):
    engine, policy = engines(kind), policies(kind)
    engine.load_weights(policy.weights(), 0)
    groups = generate(engine, policy)
    recorded = policy.old_log_probs(
        [replace(g, rollouts=[replace(r, routes=None) for r in g.rollouts]) for g in groups]
    )
    for group, own in zip(groups, recorded, strict=True):
        for rollout, mine in zip(group.rollouts, own.rollouts, strict=True):
            found = choices(rollout.routes, kind)
            assert found == choices(mine.routes, kind)[: len(found)]


def choices(routes, kind="moe"):
    """Returns the sorted experts of each token and layer."""
    from megatron_sspo.batching.routes import unpack_routes

    return np.sort(unpack_routes(routes, ROUTERS[kind]), axis=-1).tolist()


def test_greedy_is_the_most_likely_token_and_a_stop_string_is_kept(engines, policies, folders):
    from tests.policy.tiny_policy import reference

    engine, policy = engines("dense"), policies("dense")
    engine.load_weights(policy.weights(), 0)
    policy.export(folders["dense"].with_name("greedy"))
    model = reference(folders["dense"].with_name("greedy"))
    for group in generate(engine, policy, temperature=0.0):
        rollout = group.rollouts[0]
        tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens]])
        with torch.no_grad():
            logits = model(tokens).logits[0, len(group.prompt.tokens) - 1 : -1]
        assert logits.argmax(dim=-1).tolist() == list(rollout.tokens)

    stopped = [r for g in generate(engine, policy, stop=("w1",), temperature=1.5) for r in g.rollouts]
    ended = [rollout for rollout in stopped if "w1" in rollout.text]
    assert ended and all(r.finish_reason == "stop" for r in ended)
    assert all(rollout.text.rindex("w1") >= len(rollout.text) - 4 for rollout in ended)
    assert all(len(rollout.tokens) == 24 or rollout.finish_reason == "stop" for rollout in stopped)


@pytest.mark.parametrize(("path", "key"), [("/begin_weight_update", ""), ("/generate", "wrong")])
def test_requests_without_the_key_are_rejected(engines, path, key):
    async def call():
        client = Client(engines("dense").pool.servers[0].client.url, key)
        try:
            await client.post(path, {}, seconds=20)
        finally:
            await client.close()

    with pytest.raises(ServerError, match="answered 401") as raised:
        asyncio.run(call())
    assert raised.value.is_rejected


def test_the_key_is_private(engines):
    """Checks that no process has the key in its arguments, and that only the owner can read SGLang's log."""
    import psutil

    process = engines("dense").pool.servers[0].process
    assert process.log.stat().st_mode & 0o777 == 0o600
    assert process._key not in process.last_lines(10_000)

    for one in psutil.process_iter(["cmdline"]):
        assert process._key not in " ".join(one.info["cmdline"] or [])


@pytest.mark.parametrize(
    ("kind", "how"),
    [("dense", "one missing"), *((k, "one changed") for k in ("moe", "dense"))],
)
def test_wrong_weights_on_a_server_are_detected(engines, policies, monkeypatch, kind, how):
    """Checks that checksums detect wrong weights: SGLang accepts missing and unknown tensors silently."""
    engine, policy = engines(kind), policies(kind)
    stream = [(name, tensor.clone()) for name, tensor in policy.weights()]
    name = "model.norm.weight"
    if how == "one missing":
        stream = [pair for pair in stream if pair[0] != name]
    else:
        name = "model.layers.1." + ("mlp.experts.w2_weight" if kind == "moe" else "mlp.down_proj.weight")
        send = engine._transport.send

        def spoilt(session, tensors, version, observe):
            changed = ((n, t + 1e-3 if "layers.1.mlp" in n and "down_proj" in n else t) for n, t in observe(tensors))
            send(session, changed, version)

        monkeypatch.setattr(engine._transport, "send", spoilt)
    with pytest.raises(UserError, match=f"holds other weights than it was sent: 1 of .* differ, {name} among them"):
        engine.load_weights(stream, 1)
    monkeypatch.undo()
    engine.load_weights(policy.weights(), 2)
    assert largest_difference(policy, generate(engine, policy)) < 1e-4
