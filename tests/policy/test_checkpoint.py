"""Resumed runs equal uninterrupted runs to the last bit; a bad checkpoint is reported in one sentence."""

import resource
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import resume
import torch
from launcher import launch
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import nested_values
from tiny_policy import read_batch

from megatron_sspo.checkpoint import saving as saving_module
from megatron_sspo.checkpoint import sharded
from megatron_sspo.errors import UserError
from megatron_sspo.objective import sspo
from megatron_sspo.run import Model
from megatron_sspo.types import rollouts_of
from megatron_sspo.weights.formats.open_folder import open_folder


@pytest.fixture
def make(device):
    return lambda folder, **fields: resume.make_policy(folder, device, **fields)


@pytest.fixture
def saved(make, folders, batches, tmp_path):
    """kind -> a checkpoint after some updates."""

    def save(kind, updates=1):
        policy, path = make(folders[kind]), tmp_path / "checkpoint"
        resume.train(policy, read_batch(batches[kind]), updates=updates)
        path.mkdir()
        policy.save(path)
        return path

    return save


@pytest.mark.parametrize(
    ("kind", "dtype", "in_background"),
    [
        *((kind, "bfloat16", True) for kind in ("moe", "tied", "glm4", "mla", "gpt_oss", "qwen3_next", "minimax")),
        ("moe", "float32", False),
        ("glm4", "float32", True),
        ("dense", "bfloat16", False),
    ],
)
def test_resumes_to_the_bit(make, folders, batches, tmp_path, kind, dtype, in_background):
    def of_dtype(folder):
        # of routers with a bias, which others do not have
        return make(folder, model=Model(path="", dtype=dtype), megatron={"moe_router_bias_update_rate": 0.01})

    batch = read_batch(batches[kind])
    resume.save_and_resume(folders[kind], batch, tmp_path, of_dtype, in_background=in_background)


@pytest.mark.parametrize("offload", [0.0, 0.5])
def test_resumes_to_the_bit_with_padded_buckets(make, folders, batches, tmp_path, offload):
    """The embedding of 97 rows of 64 is a bucket that does not divide by 128, and others come after it."""
    ddp = {"overlap_grad_reduce": True, "bucket_size": 5_000}
    batch, optimizer = read_batch(batches["dense"]), replace(resume.OPTIMIZER, offload=offload)
    made = partial(make, ddp=ddp, optimizer=optimizer)
    resume.save_and_resume(folders["dense"], batch, tmp_path, made, in_background=False)


@pytest.mark.parametrize(("is_distributed", "offload"), [(False, 0.0), (True, 0.0), (True, 0.5)])
def test_an_update_adds_nothing_to_the_optimizer(make, folders, batches, is_distributed, offload):
    """Servers in turns measure the free memory before the first update."""
    optimizer, ddp = replace(resume.OPTIMIZER, offload=offload), {"use_distributed_optimizer": is_distributed}
    policy = make(folders["moe"], optimizer=optimizer, ddp=ddp)

    def size():
        chain = getattr(policy.optimizer, "chained_optimizers", [policy.optimizer])
        states = [state for each in chain for state in each.optimizer.state.values()]
        return sum(tensor.nbytes for state in states for tensor in state.values())

    fresh = size()
    resume.train(policy, read_batch(batches["moe"]), updates=1)
    assert fresh == size() > 100_000


@pytest.mark.parametrize("is_resharded", [False, True])
def test_a_resumed_run_takes_adams_settings_from_its_configuration(make, folders, saved, is_resharded):
    checkpoint = saved("dense")
    policy = make(folders["dense"], optimizer=replace(resume.OPTIMIZER, beta1=0.5, beta2=0.6, eps=0.1))
    (policy.load_resharded if is_resharded else policy.load)(checkpoint)
    assert {(tuple(g["betas"]), g["eps"]) for g in policy.optimizer.param_groups} == {((0.5, 0.6), 0.1)}


@pytest.mark.parametrize("is_gpu", [True, False])
def test_random_states_of_another_kind_of_device_are_seeded_anew(device, monkeypatch, is_gpu):
    def drawn():
        with tensor_parallel.get_cuda_rng_tracker().fork():
            return torch.rand(3).tolist()

    other = torch.zeros(16, dtype=torch.uint8)  # the size of a CUDA generator's state, which a CPU's refuses
    saved = {"torch": other, "cuda": None if is_gpu else other, "tracker": {"model-parallel-rng": other}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_gpu)
    found = []
    for num_steps in (3, 3, 4):
        sharded.set_random_states(saved, 1, num_steps)
        found.append(drawn())
    assert found[0] == found[1] != found[2]


def test_a_write_that_fails_in_the_background_is_a_user_error(make, folders, batches, tmp_path, monkeypatch):
    def fail(*_, results_queue, **__):
        results_queue.put((0, OSError(5, "Input/output error")))

    monkeypatch.setattr(saving_module, "_write_file", fail)
    policy = make(folders["dense"])
    resume.train(policy, read_batch(batches["dense"]), updates=1)
    saving = policy.begin_save(tmp_path)
    with pytest.raises(UserError, match=f"the checkpoint {tmp_path} could not be written .on rank 0: .*output error"):
        saving.wait()


@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_checkpoint_has_the_state_at_its_beginning(make, folders, batches, tmp_path, monkeypatch, is_distributed):
    """The thread writes when training has gone on."""
    write, may_write = saving_module._write_file, threading.Event()
    monkeypatch.setattr(
        saving_module, "_write_file", lambda *rest, **options: may_write.wait(60) and write(*rest, **options)
    )
    ddp, batch = {"use_distributed_optimizer": is_distributed}, read_batch(batches["dense"])
    policy = make(folders["dense"], ddp=ddp)
    resume.train(policy, batch)
    saving = policy.begin_save(tmp_path)
    expected = resume.train(policy, batch)
    may_write.set()
    saving.wait()
    fresh = make(folders["dense"], ddp=ddp)
    fresh.load(tmp_path)
    resume.assert_equal_to_the_bit(resume.train(fresh, batch), expected)


@pytest.mark.parametrize("kind", ["moe", "glm4"])
def test_a_reference_that_moves_is_resumed_to_the_bit(make, folders, batches, tmp_path, kind):
    fields = {"kl_in_reward": 0.1, "reference_every": 1, "model": Model(path="", dtype="bfloat16")}
    policy, batch = make(folders[kind], **fields), read_batch(batches[kind])
    policy.update(batch, sspo())
    expected = [rollout.old_log_probs.tolist() for rollout in rollouts_of(policy.old_log_probs(batch))]
    policy.move_reference()
    policy.update(batch, sspo())
    path = tmp_path / "checkpoint"
    path.mkdir()
    saving = policy.begin_save(path)
    policy.move_reference()  # the checkpoint has the reference at its beginning
    saving.wait()
    fresh = make(folders[kind], **fields)
    for is_loaded in (False, True):
        (found,) = fresh.reference_log_probs([batch])
        assert ([rollout.reference_log_probs.tolist() for rollout in rollouts_of(found)] == expected) == is_loaded
        fresh.load(path)
    with open_folder(path) as folder:  # which has the policy's weights alone
        assert folder.read_rows("lm_head.weight", 0, 1).tolist() == dict(fresh.weights())["lm_head.weight"][:1].tolist()


def test_the_optimizers_state_is_put_together_once(make, folders, saved, tmp_path, monkeypatch):
    """Megatron cuts fc1's factors from whole tensors: it copies views to write them, and keeps what it reads into."""
    loaded = saved("moe")
    policy, copied, states = make(folders["moe"]), [], []
    monkeypatch.setattr(saving_module, "_copied", lambda tensors, _: copied.extend(tensors) or tensors)

    def kept(function):
        return lambda *rest, **options: states.append(function(*rest, **options)) or states[-1]

    monkeypatch.setattr(sharded, "state_to_save", kept(sharded.state_to_save))
    monkeypatch.setattr(sharded, "state_to_load", kept(sharded.state_to_load))
    monkeypatch.setattr(sharded, "read", kept(sharded.read))
    policy.load(loaded)
    (tmp_path / "again").mkdir()
    policy.begin_save(tmp_path / "again").wait()
    to_load, read, to_save = (storages(state["optimizer"]) for state in states)
    assert len(read) > 30 and read <= to_load
    written = storages([tensor for item, tensor in copied if item.index.fqn.startswith("optimizer.state.")])
    assert len(written) > 30 and written <= to_save


def storages(state):
    """Returns where the values of tensors are that a state describes or has."""
    tensors = (getattr(value, "data", None) for value in nested_values(state))
    return {each.untyped_storage().data_ptr() for each in tensors if isinstance(each, torch.Tensor)}


def test_a_save_that_is_cancelled_ends(make, folders, batches, tmp_path, monkeypatch):
    write, has_begun = saving_module._write_file, threading.Event()

    def write_slowly(*rest, write_bucket, **options):
        file, key, (objects, tensors) = write_bucket
        has_begun.set()
        write(*rest, write_bucket=(file, key, (objects, (time.sleep(0.2) or each for each in tensors))), **options)

    monkeypatch.setattr(saving_module, "_write_file", write_slowly)
    policy = make(folders["dense"])
    resume.train(policy, read_batch(batches["dense"]), updates=1)
    saving = policy.begin_save(tmp_path)
    assert has_begun.wait(60)
    saving.cancel()
    with pytest.raises(UserError, match="it was cancelled"):
        saving.wait()


@pytest.mark.parametrize("in_background", [False, True])
def test_unwritable_file_raises_a_user_error(make, folders, batches, tmp_path, in_background):
    policy = make(folders["dense"])
    resume.train(policy, read_batch(batches["dense"]), updates=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            UserError, match=f"the checkpoint {tmp_path} could not be written .*(too large|to its end|OSError)"
        ):
            policy.begin_save(tmp_path).wait() if in_background else policy.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_resumes_to_the_bit_on_two_expert_ranks(folders, batches, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "in_background").mkdir()
    launch(Path(resume.__file__), 2, folders["moe"], batches["moe"], tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("file", "kept"),  # the share of its bytes; None: the file is removed
    [
        *((file, None) for file in ("__0_0.distcp", ".metadata", "metadata.json", "common.pt")),
        *((file, 0.5) for file in ("__0_0.distcp", ".metadata", "common.pt")),
        ("__0_0.distcp", 0),
    ],
)
def test_damaged_checkpoint_raises_a_user_error(saved, make, folders, file, kept):
    path = saved("moe")
    if file == "common.pt" and not (path / file).exists():
        pytest.skip("newer releases of megatron-core write none")
    content = (path / file).read_bytes()
    (path / file).unlink()
    if kept is not None:
        (path / file).write_bytes(content[: int(kept * len(content))])
    with pytest.raises(UserError) as raised:
        make(folders["moe"]).load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("written", "loaded"), [("dense", "moe"), ("moe", "moe_shallow"), ("tied", "dense")])
def test_a_checkpoint_of_another_model_is_refused(saved, make, folders, written, loaded):
    path = saved(written)
    with pytest.raises(UserError) as raised:
        make(folders[loaded]).load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


OPTIMIZER = replace(resume.OPTIMIZER, full_rate_kl=0.0)  # at the schedule's own rate


def test_every_update_of_a_decayed_schedule_trains(make, folders, batches):
    batch = read_batch(batches["dense"])
    for schedule, num_updates, min_lr, last in (("cosine", 1, 0.0, 5e-4), ("linear", 2, 1e-4, 1e-4)):
        optimizer = replace(OPTIMIZER, schedule=schedule, warmup_updates=0, min_lr=min_lr)
        policy = make(folders["dense"], optimizer=optimizer, num_updates=num_updates)
        rates = [policy.update(batch, sspo()).learning_rate for _ in range(num_updates)]
        assert rates[-1] == pytest.approx(last)


@pytest.mark.parametrize(
    ("change", "rate"),
    [({}, 1e-3), ({"lr": 3e-4}, 3e-4), ({"warmup_updates": 0, "schedule": "constant", "lr": 5e-4}, 5e-4)],
)
def test_resumed_schedule_follows_the_configuration(saved, make, folders, batches, change, rate):
    # after a loss that is not finite, users resume with a lower learning rate
    path, batch = saved("dense", updates=2), read_batch(batches["dense"])
    policy = make(folders["dense"], optimizer=replace(OPTIMIZER, **change))
    policy.load(path)
    before = {name: tensor.clone() for name, tensor in policy.weights()}
    assert policy.update(batch, sspo()).learning_rate == pytest.approx(rate)
    step = max(float((tensor - before[name]).abs().max()) for name, tensor in policy.weights())
    assert step == pytest.approx(rate, rel=0.5)


def test_random_states_are_restored(saved, make, folders):
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    path = saved("dense")
    expected = torch.get_rng_state()
    with get_cuda_rng_tracker().fork():
        drawn = torch.rand(3)
    torch.rand(5)
    make(folders["dense"]).load(path)
    assert torch.equal(torch.get_rng_state(), expected)
    with get_cuda_rng_tracker().fork():
        assert torch.equal(torch.rand(3), drawn)
