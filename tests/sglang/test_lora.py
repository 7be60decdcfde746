"""Adapters alone on real servers: log-probs are the trainer's after every sync, also on a server that was restarted."""

import signal
from dataclasses import replace

import pytest

from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.weight_sync import adapter
from megatron_sspo.run import LoRA, Optimizer
from tests.policy import tiny_policy
from tests.sglang import served
from tests.sglang.test_overlap import finished
from tests.sglang.test_recovery import num_up, signal_all

TARGETS = {"dense": ("attention", "mlp"), "moe": ("attention",)}


@pytest.fixture
def adapted(request, folders, device, tmp_path):
    """Returns a policy with adapters, and an engine of two servers that get the adapters alone."""
    kind, options = request.param
    lora = LoRA(rank=8, alpha=16.0, targets=TARGETS[kind])
    if kind == "dense":  # the MoE model's begin as nothing, and are learned here
        lora = replace(lora, path=str(tiny_policy.save_adapter(kind, folders[kind])))
    policy = Policy(tiny_policy.make_run(lora=lora, optimizer=Optimizer(lr=3e-2)), folders[kind], device)
    options = {"lora": "adapter", "adapters": lora, "pause": "abort", "verify_every": 1, **options}
    engine = sglang.engine(folders[kind], num_servers=2, run_folder=tmp_path, **options)
    yield policy, engine
    engine.close()


def generate(engine, policy, **changes):
    sampling = replace(policy.run.rollouts.sampling, max_tokens=24, **changes)
    return served.generate(engine, served.PROMPTS, sampling, group_size=4, seed=0)


def largest_difference(policy, groups):
    """Returns the largest difference from the trainer's log-probs, but for responses after a near tie of a router."""
    of_responses = [
        max(abs(a - b) for a, b in zip(rollout.old_log_probs, rollout.rollout_log_probs, strict=True))
        for group in policy.old_log_probs(*policy.scatter([groups]))
        for rollout in group.rollouts
    ]
    return sorted(of_responses)[-3 if policy.transformer.num_moe_experts else -1]


def learn(policy, groups):
    advantages = [[replace(r, advantage=float(n % 2) - 0.5) for n, r in enumerate(g.rollouts)] for g in groups]
    batch = [replace(g, rollouts=rollouts) for g, rollouts in zip(groups, advantages, strict=True)]
    policy.update(*policy.scatter([batch]), sspo())


@pytest.mark.parametrize("adapted", [("dense", {}), ("moe", {})], ids=["dense", "moe"], indirect=True)
def test_servers_add_the_adapter_of_every_sync(adapted):
    policy, engine = adapted
    sent, stale = [], None
    for version in range(4):
        if version == 2:
            signal_all(engine.pool.servers[0], signal.SIGKILL)
            served.until(lambda: num_up(engine) == 2, 120)
        if version == 3:  # as on a server that its owner has restarted, without a word
            unload = engine.pool.servers[1].client.post("/unload_lora_adapter", {"lora_name": adapter.NAME}, seconds=30)
            engine._run(unload)
        engine.load_weights(policy.weights(), version)
        sent.append(engine.metrics()["sync/gigabytes"])
        assert [server.version for server in engine.pool.servers] == [version, version]
        groups = generate(engine, policy)
        assert {rollout.policy_version for group in groups for rollout in group.rollouts} == {version}
        assert largest_difference(policy, groups) < 1e-5
        if stale is not None:  # the update is large enough to detect an old adapter
            assert largest_difference(policy, stale) > 1e-3
        stale = groups
        learn(policy, groups)
    assert sent[0] == sent[2] == sent[3] > 3 * sent[1], "new servers get the base"


@pytest.mark.parametrize("adapted", [("dense", {"router": {}})], ids=["router"], indirect=True)
def test_responses_continue_with_the_new_adapter(adapted, tmp_path):
    """Replaces the adapter during generation, and compares every token with the exported model of its version."""
    policy, engine = adapted
    folders = [tmp_path / "version-0", tmp_path / "version-1"]
    policy.export(folders[0])
    engine.load_weights(policy.weights(), 0)
    learn(policy, generate(engine, policy))
    policy.export(folders[1])
    generation = engine.start(served.PROMPTS, served.SAMPLING, group_size=served.GROUP, seed=0)
    served.until_in_the_middle(engine)
    engine.load_weights(policy.weights(), 1)
    groups = finished(generation)
    served.check(groups, {0, 1})
    assert served.check_spans([*map(tiny_policy.reference, folders)], groups, atol=1e-5) > 10
