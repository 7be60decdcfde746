"""Adapters beside PEFT on Transformers, what a checkpoint has of them, and the base as the reference policy."""

import json
import secrets
from dataclasses import replace

import pytest
import tiny_policy
import torch
from peft import PeftModel

from megatron_sspo.checkpoint.state import INITIAL_WEIGHTS
from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.errors import UserError
from megatron_sspo.files import manifest
from megatron_sspo.memory.estimate import checkpoint_bytes, estimate
from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.lora import factors_of

KINDS = ("moe", "dense", "tied", "moe_odd", "mixtral", "qwen2", "glm4")


def policy_of(kind, folders, device, **fields):
    adapters = replace(tiny_policy.lora(kind, folders[kind]), **fields)
    return Policy(tiny_policy.make_run(lora=adapters), folders[kind], device)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_adapter_is_the_same_model_in_peft(kind, folders, batches, device, tmp_path):
    policy = policy_of(kind, folders, device)
    (batch,) = policy.scatter([tiny_policy.read_batch(batches[kind])])
    policy.update(batch, sspo())
    policy.export_adapter(tmp_path / "adapter")
    base = tiny_policy.reference(folders[kind])
    noted = policy.old_log_probs(batch)
    policy.export(tmp_path / "merged")
    models = {"merged": tiny_policy.reference(tmp_path / "merged")}
    if kind != "glm4":  # whose dense layers PEFT 0.21.2 takes for experts, because their names end alike
        models["PEFT"] = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    for name, model in models.items():
        for group in noted:
            for rollout in group.rollouts:
                expected = tiny_policy.log_probs(model, group.prompt, rollout)
                assert torch.allclose(torch.tensor(rollout.old_log_probs).float(), expected, atol=1e-5), name


def test_a_run_starts_as_the_base_and_its_reference_stays_the_base(folders, batches, device):
    policy = policy_of("moe", folders, device, path=None)
    base = tiny_policy.reference(folders["moe"])
    (batch,) = policy.scatter([tiny_policy.read_batch(batches["moe"])])
    [group, *_] = policy.old_log_probs(batch)
    expected = tiny_policy.log_probs(base, group.prompt, group.rollouts[0])
    assert torch.allclose(torch.tensor(group.rollouts[0].old_log_probs).float(), expected, atol=1e-5)
    for _ in range(3):
        policy.update(batch, sspo())
    [[group, *_]] = policy.reference_log_probs([batch])
    assert torch.allclose(torch.tensor(group.rollouts[0].reference_log_probs).float(), expected, atol=1e-5)
    [group, *_] = policy.old_log_probs(batch)
    assert (torch.tensor(group.rollouts[0].old_log_probs).float() - expected).abs().max() > 1e-2


def test_a_checkpoint_has_the_adapters_alone_and_resumes_to_the_bit(folders, batches, device, tmp_path):
    policy = policy_of("moe", folders, device, path=None, targets=("attention",))
    (batch,) = policy.scatter([tiny_policy.read_batch(batches["moe"])])
    policy.update(batch, sspo())
    (tmp_path / "checkpoint").mkdir()
    policy.save(tmp_path / "checkpoint")
    written = sum(file.stat().st_size for file in (tmp_path / "checkpoint").glob("*.distcp"))
    assert written < (folders["moe"] / "model.safetensors").stat().st_size / 3  # the factors, with moments
    for load in ("load", "load_resharded"):
        resumed = policy_of("moe", folders, device, path=None, targets=("attention",))
        getattr(resumed, load)(tmp_path / "checkpoint")
        records = [one.update(batch, sspo()) for one in (policy_at(policy, tmp_path), resumed)]
        assert records[0].loss == records[1].loss and records[0].grad_norm == records[1].grad_norm
        pairs = zip(policy.weights(), resumed.weights(), strict=True)
        assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)


@pytest.mark.parametrize("kind", ["moe", "dense", "mixtral"])
def test_a_checkpoint_opens_as_the_merged_model(kind, folders, batches, device, tmp_path):
    policy = policy_of(kind, folders, device)
    (batch,) = policy.scatter([tiny_policy.read_batch(batches[kind])])
    policy.update(batch, sspo())
    checkpoint = save_checkpoint(policy, tmp_path)
    folder = open_folder(checkpoint, folders[kind])
    folder.check(folder.rows())
    merged = dict(policy.weights())
    assert set(folder.shapes()) == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(folder.read(name), tensor, rtol=0, atol=1e-7)


def test_a_checkpoint_with_other_factors_or_another_base_is_refused(folders, device, tmp_path):
    policy = policy_of("moe", folders, device)
    for targets, message in (
        (("attention",), r": 4 without a row in the weight table: decoder.layers.mlp.experts"),
        (("attention", "mlp"), r"lora.targets has 'mlp'"),
    ):
        changed = replace(policy.run, lora=replace(policy.run.lora, targets=targets))
        with pytest.raises(UserError, match=message):
            open_folder(save_checkpoint(policy, tmp_path, changed), folders["moe"])
    checkpoint = save_checkpoint(policy, tmp_path)
    for base, message in ((folders["moe_odd"], "has other weights than those"), (tmp_path / "no", "adapters alone")):
        with pytest.raises(UserError, match=message):
            open_folder(checkpoint, base)


def save_checkpoint(policy, folder, run=None):
    """Writes a run's checkpoint of a policy, as far as it is read here; the manifest names `run`."""
    checkpoint = folder / secrets.token_hex(4)
    (checkpoint / "trainer").mkdir(parents=True)
    policy.save(checkpoint / "trainer")
    (checkpoint / "state.json").write_text(json.dumps({INITIAL_WEIGHTS: policy.folder.fingerprint()}))
    files = manifest.checksums(checkpoint, manifest.files_of(checkpoint))
    manifest.write_manifest(checkpoint, manifest.Manifest(files, config_to_json(run or policy.run)))
    return checkpoint


def policy_at(policy, tmp_path):
    policy.load(tmp_path / "checkpoint")
    return policy


def test_what_does_not_fit_is_named(folders, device, tmp_path):
    with pytest.raises(UserError, match=r"lora.targets has 'experts'"):
        policy_of("dense", folders, device, targets=("experts",))
    with pytest.raises(UserError, match=r"has r 8, and this run needs 4"):
        policy_of("moe", folders, device, rank=4)
    with pytest.raises(UserError, match=r"lora.targets differ in 192 tensors"):
        policy_of("moe", folders, device, targets=("attention",))


def test_every_linear_layer_has_a_target(folders, device):
    policy = policy_of("moe", folders, device)
    adapted = {pair.weight.name for pair in factors_of(policy.rows, ("attention", "experts"), 4)}
    matrices = {row.name for row in policy.rows if len(row.hf_shapes[0]) == 2}
    assert {name.split(".")[-2] for name in matrices - adapted} == {"word_embeddings", "router", "output_layer"}


@pytest.mark.parametrize("kind", ["moe", "dense"])
def test_the_estimate_of_memory_counts_what_is_trained(kind, folders, device):
    policy = policy_of(kind, folders, device)
    numbers = [p.numel() for chunk in policy.chunks for p in chunk.parameters() if p.requires_grad]
    [found] = estimate(policy.run, policy.folder.config, on_cuda=False)
    frozen = sum(tensor.numel() for _, tensor in policy.weights())
    assert (found.gradients, found.weights) == (4 * sum(numbers), 4 * (sum(numbers) + frozen))
    assert checkpoint_bytes(policy.run, policy.folder.config) == 16 * sum(numbers)
