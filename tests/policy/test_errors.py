"""Errors that a user can fix are a UserError of one sentence, before anything is trained or changed."""

from dataclasses import replace

import pytest
import torch
from tiny_policy import make_run, read_batch, with_first

from megatron_sspo.errors import UserError
from megatron_sspo.objective import sspo
from megatron_sspo.policy.distributed import initialize, rendezvous_store
from megatron_sspo.policy.model import transformer_config
from megatron_sspo.policy.policy import Policy
from megatron_sspo.processes.ports import free_port
from megatron_sspo.run import Optimizer, Parallel, check
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.hf_folder import HFFolder
from tests.test_run_check import RUN


def configure(folder, parallel=Parallel(), **options):
    config = HFFolder(folder).config
    return transformer_config(load_family(config), config, parallel, torch.float32, options)


@pytest.mark.parametrize(
    ("kind", "parallel", "options", "words"),
    [
        ("moe", Parallel(), {"moe_grouped_gem": True}, "moe_grouped_gem is not a field.*did you mean moe_grouped_gemm"),
        ("moe", Parallel(), {"calculate_per_token_loss": True}, "is True, which a recipe cannot set: it weights every"),
        ("dense", Parallel(data=2, expert=2), {}, "Megatron refuses the configuration.*num_moe_experts"),
        ("dense", Parallel(tensor=3), {}, "Megatron refuses the configuration"),
        ("mla", Parallel(), {"apply_rope_fusion": True}, "the trainer's latent attention does not have it"),
        ("gpt_oss", Parallel(context=2), {"cp_comm_type": "p2p"}, "sinks, which Transformer Engine computes with a2a"),
    ],
)
def test_a_model_that_cannot_be_configured(folders, kind, parallel, options, words):
    with pytest.raises(UserError, match=words) as raised:
        configure(folders[kind], parallel, **options)
    assert "\n" not in str(raised.value)


def test_processes_that_do_not_join(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(UserError, match=r"the 2 processes did not all connect to 127.0.0.1:\d+ within 1 s"):
        rendezvous_store(0, 2, 1.0)


def test_wrong_number_of_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UserError, match="needs 4 processes, and 1 were started"):
        initialize(Parallel(data=2, tensor=2), seed=0)


def weights(policy):
    return {name: tensor.clone() for name, tensor in policy.weights()}


@pytest.mark.parametrize("change", [{"advantage": float("nan")}, {"advantage": float("inf")}, {"old_log_probs": "nan"}])
def test_a_loss_that_is_not_finite_takes_no_step(folders, batches, device, change):
    policy, batch = Policy(make_run(), folders["moe"], device), read_batch(batches["moe"])
    before = weights(policy)
    if change == {"old_log_probs": "nan"}:
        change = {"old_log_probs": (float("nan"),) * len(batch[0].rollouts[0].tokens)}
    with pytest.raises(UserError, match="no step was taken") as raised:
        policy.update(with_first(batch, **change), sspo())
    assert "\n" not in str(raised.value)
    after = weights(policy)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    # the failed update has left nothing in the gradients or the moments
    found = policy.update(batch, sspo())
    expected = Policy(make_run(), folders["moe"], device).update(batch, sspo())
    assert (found.loss, found.grad_norm) == (expected.loss, expected.grad_norm)


def test_a_gradient_that_is_not_finite_is_reported(folders, batches, device):
    policy, batch = Policy(make_run(), folders["dense"], device), read_batch(batches["dense"])

    def with_infinite_gradient(log_probs, *others):
        sums = sspo()(log_probs, *others)
        return replace(sums, loss=sums.loss + (log_probs - log_probs.detach()).abs().sqrt().sum())

    with pytest.raises(UserError, match="the gradient norm is nan"):
        policy.update(batch, with_infinite_gradient)


def test_a_process_without_gradients_trains_all_the_same(folders, batches, device):
    torch.set_grad_enabled(False)  # as the file of a reward that is a model does
    try:
        policy = Policy(make_run(), folders["dense"], device)
        record = policy.update(read_batch(batches["dense"]), check(RUN).objective)
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert record.grad_norm > 0


def test_without_clipping_the_gradient_norm_is_still_reported(folders, batches, device):
    norms, kind = [], "moe"
    for clip in (1e9, 0.0):
        run = make_run(optimizer=Optimizer(lr=1e-3, clip_grad=clip))
        norms.append(Policy(run, folders[kind], device).update(read_batch(batches[kind]), sspo()).grad_norm)
    assert norms[0] > 0
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_a_sequence_longer_than_a_microbatch(folders, batches, device):
    policy = Policy(make_run(tokens=16), folders["dense"], device)
    with pytest.raises(UserError, match="tokens_per_microbatch=16"):
        policy.update(read_batch(batches["dense"]), sspo())


def test_the_optimizers_own_weights_are_the_loaded_ones(folders, device):
    """Megatron copies the weights when an optimizer is built; weights that are loaded later would be lost in a step."""
    policy = Policy(make_run(dtype="bfloat16", optimizer=Optimizer(lr=0.0)), folders["dense"], device)
    before = {name: tensor.clone() for name, tensor in policy.weights()}
    policy.optimizer.zero_grad()
    policy.optimizer.step()  # at a rate of 0, a step writes the optimizer's copy into the model
    for name, tensor in policy.weights():
        assert torch.equal(tensor, before[name]), name
