"""Resumed runs equal uninterrupted runs to the last bit; a bad checkpoint is reported in one sentence."""

import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import resume
import torch
from launcher import launch
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from tiny_policy import read_batch

from megatron_sspo.checkpoint import saving as saving_module
from megatron_sspo.checkpoint.saving import ResultQueue
from megatron_sspo.errors import UserError
from megatron_sspo.objective import sspo
from megatron_sspo.run import Model


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


@pytest.mark.parametrize("kind", ["moe", "dense", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("in_background", [False, True])
def test_resumes_to_the_bit(make, folders, batches, tmp_path, kind, dtype, in_background):
    def of_dtype(folder):
        return make(folder, model=Model(path="", dtype=dtype))

    batch = read_batch(batches[kind])
    resume.save_and_resume(folders[kind], batch, tmp_path, of_dtype, in_background=in_background)


def test_resumes_to_the_bit_with_padded_buckets(make, folders, batches, tmp_path):
    """The embedding of 97 rows of 64 is a bucket that does not divide by 128, and others come after it."""
    ddp = {"overlap_grad_reduce": True, "bucket_size": 5_000}
    batch = read_batch(batches["dense"])
    resume.save_and_resume(folders["dense"], batch, tmp_path, lambda folder: make(folder, ddp=ddp), in_background=False)


@pytest.mark.parametrize("is_resharded", [False, True])
def test_a_resumed_run_takes_adams_settings_from_its_configuration(make, folders, saved, is_resharded):
    checkpoint = saved("dense")
    policy = make(folders["dense"], optimizer=replace(resume.OPTIMIZER, beta1=0.5, beta2=0.6, eps=0.1))
    (policy.load_resharded if is_resharded else policy.load)(checkpoint)
    assert {(tuple(g["betas"]), g["eps"]) for g in policy.optimizer.param_groups} == {((0.5, 0.6), 0.1)}


def test_killed_writer_raises_a_user_error(make, folders, batches, tmp_path, monkeypatch):
    monkeypatch.setattr(ResultQueue, "put", lambda *_: time.sleep(600))  # the writer cannot finish before it is killed
    policy = make(folders["dense"])
    resume.train(policy, read_batch(batches["dense"]), updates=1)
    saving = policy.begin_save(tmp_path)
    saving._process.kill()
    with pytest.raises(UserError, match=f"the checkpoint {tmp_path} could not be written .on rank 0: .*was killed"):
        saving.wait()


def test_killed_worker_of_the_writer_raises_a_user_error(make, folders, batches, tmp_path, monkeypatch):
    """Kills a worker as the kernel does when memory runs out; Megatron's writer would wait for it forever."""
    monkeypatch.setattr(FileSystemWriterAsync, "write_preloaded_data", lambda *_, **__: time.sleep(600))
    policy = make(folders["dense"])
    resume.train(policy, read_batch(batches["dense"]), updates=1)
    saving = policy.begin_save(tmp_path)
    writer = psutil.Process(saving._process.pid)
    until_it_has_workers = time.monotonic() + 60
    while not writer.children() and time.monotonic() < until_it_has_workers:
        time.sleep(0.01)
    writer.children()[0].kill()
    with pytest.raises(UserError, match=f"the checkpoint {tmp_path} could not be written .on rank 0: .*was killed"):
        saving.wait()


def test_a_writer_that_deadlocks_as_it_is_forked_is_forked_again(make, folders, batches, tmp_path, monkeypatch):
    """Simulates a lock that a thread of the trainer holds during the fork, so that the forked process never gets it."""
    real, deadlocked = saving_module._write, tmp_path / "deadlocked"

    def write(*arguments):
        if not deadlocked.exists():
            deadlocked.touch()
            time.sleep(600)
        real(*arguments)

    monkeypatch.setattr(saving_module, "_write", write)
    monkeypatch.setattr(saving_module, "_START_SECONDS", 1.0)
    policy = make(folders["dense"])
    resume.train(policy, read_batch(batches["dense"]), updates=1)
    (tmp_path / "checkpoint").mkdir()
    policy.save(tmp_path / "checkpoint")
    assert deadlocked.exists()
    make(folders["dense"]).load(tmp_path / "checkpoint")


def test_writer_killed_while_sending_its_result():
    results = ResultQueue()
    if not (writer := os.fork()):
        results.put(bytes(1_000_000))  # a pipe takes some 65,000
        os._exit(0)
    results.close_writer()
    until_it_blocks = time.monotonic() + 60
    while not results._reader.poll() and time.monotonic() < until_it_blocks:
        time.sleep(0.01)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    results.collect()
    assert "was killed" in str(results.get_nowait())


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


def damage(path, kind):
    file = {
        "deleted": "__0_0.distcp",
        "truncated": "__0_0.distcp",
        "emptied": sorted(p.name for p in path.glob("*.distcp"))[-1],
        "without .metadata": ".metadata",
        "without metadata.json": "metadata.json",
        "without common.pt": "common.pt",
        "with a cut common.pt": "common.pt",
        "with a cut .metadata": ".metadata",
    }[kind]
    if file == "common.pt" and not (path / file).exists():
        pytest.skip("newer releases of megatron-core write none")
    assert (path / file).exists()
    if kind.startswith(("deleted", "without")):
        (path / file).unlink()
    else:
        content = (path / file).read_bytes()
        (path / file).write_bytes(b"" if kind == "emptied" else content[: len(content) // 2])


@pytest.mark.parametrize(
    "kind",
    [
        "deleted",
        "truncated",
        "emptied",
        "without .metadata",
        "without metadata.json",
        "without common.pt",
        "with a cut common.pt",
        "with a cut .metadata",
    ],
)
def test_damaged_checkpoint_raises_a_user_error(saved, make, folders, kind):
    path = saved("moe")
    damage(path, kind)
    with pytest.raises(UserError) as raised:
        make(folders["moe"]).load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("written", "loaded"),
    [
        ("dense", "moe"),
        ("moe", "moe_shallow"),
        ("tied", "dense"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(saved, make, folders, written, loaded):
    path = saved(written)
    with pytest.raises(UserError) as raised:
        make(folders[loaded]).load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_every_update_of_a_decayed_schedule_trains(make, folders, batches):
    batch = read_batch(batches["dense"])
    for schedule, num_updates, min_lr, last in (("cosine", 1, 0.0, 5e-4), ("linear", 2, 1e-4, 1e-4)):
        optimizer = replace(resume.OPTIMIZER, schedule=schedule, warmup_updates=0, min_lr=min_lr)
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
    policy = make(folders["dense"], optimizer=replace(resume.OPTIMIZER, **change))
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
