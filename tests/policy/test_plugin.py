"""The loss hook in a training loop of another project."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plugin_loop
import pytest
import torch
from launcher import launch
from layouts import AUXILIARY
from tiny_policy import VOCAB_SIZE, make_run

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.objective import AtanLog, Correction, sspo
from megatron_sspo.policy import forward_step
from megatron_sspo.policy.plugin import pack_rollouts, policy_step
from megatron_sspo.policy.policy import Policy
from megatron_sspo.types import Rollout

NAN = float("nan")
ROLLOUT = {"prompt": [1, 2], "response": [3, 4, 5], "advantage": 1.0, "old": [-1.0, -2.0, -3.0]}
EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin_own_loop.py"


@pytest.mark.slow
def test_first_gradient_of_the_example_equals_ours(folders, tmp_path):
    launch(Path(plugin_loop.__file__), 2, folders["moe"], tmp_path / "result.pt")
    found = torch.load(tmp_path / "result.pt")
    theirs, ours = found["losses"]
    assert theirs == pytest.approx(ours, abs=1e-6) and abs(ours) > 1e-3
    for name, gradient in found["ours"].items():
        difference = float((found["theirs"][name] - gradient).norm() / gradient.norm().clamp(min=1e-12))
        assert difference < 5e-6, f"{name}: {difference}"


@pytest.mark.slow
def test_the_example_runs_on_two_processes():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    norms = [float(norm) for norm in re.findall(r"rank 0 .* gradient norm ([0-9.]+)", done.stdout)]
    assert len(norms) == 5 and norms[-1] < norms[0]


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": [-1.0, -2.0]}, r"'old' of rollout 0 has the shape \[2\], and there are 3 response tokens"),
        ({"old": [-1.0, NAN, -2.0]}, "'old' of rollout 0 is not finite at response token 1"),
        ({"advantage": NAN}, "'advantage' of rollout 0 is not finite"),
        ({"advantage": [1.0, -1.0, NAN]}, "'advantage' of rollout 0 is not finite at response token 2"),
        ({"advantage": "high"}, "'advantage' of rollout 0 is not numbers: could not convert"),
        ({"advantage": None}, "rollout 0 has no 'advantage'"),
        ({"olds": [-1.0] * 3}, "rollout 0 has 'olds', and its keys may be prompt, response, advantage, old"),
        ({"observed": [(1, 9)]}, r"'observed' of rollout 0 is \[\(1, 9\)\], and must be parts in order"),
        ({"observed": [(2, 1)]}, "must be parts in order"),
        ({"observed": [(0, 2), (1, 3)]}, "must be parts in order"),
        ({"observed": [0, 1]}, r"'observed' of rollout 0 is \[0, 1\], and must be pairs \(first, beyond\) of whole"),
        ({"observed": [(0, 1, 2)]}, r"must be pairs \(first, beyond\)"),
        ({"observed": [(0, 1), (1, 2, 3)]}, r"must be pairs \(first, beyond\)"),
        ({"observed": [(0.0, 1.0)]}, r"must be pairs \(first, beyond\)"),
        ({"observed": 1}, r"must be pairs \(first, beyond\)"),
        ({"prompt": [1.7, 2.0]}, "'prompt' of rollout 0 has wrong tokens: they are float64 .* must be integers"),
        ({"prompt": [-1, 2]}, "'prompt' of rollout 0 has the token -1, and tokens are whole numbers of 0 or more"),
        ({"prompt": [2**40, 2]}, "'prompt' of rollout 0 has wrong tokens: .* must fit into int32"),
        ({"prompt": 5}, "'prompt' of rollout 0 has wrong tokens"),
        ({"response": [3, -4, 5]}, "'response' of rollout 0 has the token -4"),
        ({"response": 5}, "'response' of rollout 0 has wrong tokens"),
        ({"advantage": 1e300}, r"'advantage' of rollout 0 is 1e\+300, which float32 cannot hold"),
        (
            {"old": [-1.0, -1e39, -2.0]},
            r"'old' of rollout 0 is -1e\+39, which float32 cannot hold, at response token 1",
        ),
    ],
)
def test_rollouts_that_would_train_something_else_are_refused(device, change, message):
    with pytest.raises(ValueError, match=message):
        pack_rollouts([{**ROLLOUT, **change}])


def test_what_only_some_rollouts_have_is_refused(device):
    with pytest.raises(ValueError, match="some rollouts of a batch have 'engine' and some have none"):
        pack_rollouts([ROLLOUT, {**ROLLOUT, "engine": [-1.0, -2.0, -3.0]}])


def test_values_may_be_tensors_and_log_probs_of_observations_anything(device):
    old = torch.tensor([-1.0, NAN, -3.0], requires_grad=True)
    found = pack_rollouts([{**ROLLOUT, "advantage": torch.tensor(2.0), "old": old, "observed": [(1, 2)]}])
    assert found.advantages.tolist() == [2.0] and found.old_log_probs.tolist() == [-1.0, -3.0]


def test_values_may_be_half_precision_and_observed_an_array(device):
    given = {"old": torch.tensor([-1.0, -2.0, -3.0]).bfloat16(), "advantage": torch.tensor(2.0).bfloat16()}
    given |= {"observed": np.array([[0, 1], [2, 3]]), "prompt": torch.tensor([1, 2])}
    found = pack_rollouts([{**ROLLOUT, **given}])
    assert found.advantages.tolist() == [2.0] and found.old_log_probs.tolist() == [-2.0]
    assert found.tokens.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"objective": "sspo()"}, r"objective is 'sspo\(\)', and must be an objective, such as sspo\(\)"),
        ({"objective": AtanLog()}, "objective is AtanLog.* must be an objective"),
        ({"objective": sspo}, "objective is the function sspo, and must be an objective"),
        ({"penalties": {"kl_coef": 1.0}}, r"penalties is \{'kl_coef': 1.0\}, and must be a Penalties\(...\)"),
        ({"correction": "truncated"}, r"correction is 'truncated', and must be a Correction\(...\)"),
    ],
)
def test_a_step_with_arguments_of_another_type_is_refused(device, wrong, message):
    options = {"objective": sspo(), "num_sequences": 1, "num_microbatches": 1, "vocab_size": 8, **wrong}
    with pytest.raises(ValueError, match=message):
        policy_step(options.pop("objective"), **options)


@pytest.mark.parametrize(
    "wrong",
    [{"num_sequences": 0}, {"num_microbatches": 0}, {"vocab_size": 0}, {"temperature": 0.0}, {"temperature": NAN}],
)
def test_a_step_by_nothing_is_refused(device, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*, and must be above 0"):
        policy_step(sspo(), **{"num_sequences": 1, "num_microbatches": 1, "vocab_size": 8, **wrong})


def test_a_correction_without_log_probs_of_the_engine_is_refused(device):
    hook = make_hook(correction=Correction(mode="truncated"))
    policy, engine = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True), {"engine": [-1.5, -2.0, -3.0]}
    loss, _, metrics = hook.loss(pack_rollouts([{**ROLLOUT, **engine}]), policy, policy.detach())
    assert loss.isfinite() and metrics["tokens"]["engine_difference"].tolist() == [0.5, 0, 0]
    assert hook.loss(pack_rollouts([]), policy[:0], policy[:0].detach())[0] == 0
    with pytest.raises(ValueError, match="mode is 'truncated', and there are no log-probs of the engine"):
        hook.loss(pack_rollouts([ROLLOUT]), policy, policy.detach())


def test_a_row_divides_over_the_tensor_parallel_ranks(device, monkeypatch):
    from megatron.core import parallel_state

    plain = pack_rollouts([ROLLOUT])
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_world_size", lambda: 4)
    packed = pack_rollouts([ROLLOUT])
    assert len(packed.tokens) == 8 and packed.is_padding.tolist() == [False] * 5 + [True] * 3
    assert torch.equal(packed.response_rows, plain.response_rows) and packed.longest == plain.longest == 5


@pytest.fixture
def make_chunk(device, folders):
    """make_chunk(kind, options) -> a model in DDP, as another training loop has it."""
    return lambda kind, **megatron: Policy(make_run(megatron=megatron), folders[kind], device).chunks[0]


def make_hook(**options):
    return policy_step(sspo(), num_sequences=1, num_microbatches=1, vocab_size=VOCAB_SIZE, **options)


def test_microbatch_is_moved_to_the_device_of_the_model(make_chunk, monkeypatch):
    monkeypatch.setattr(forward_step, "forward_without_head", lambda model, chunk, **inputs: inputs["input_ids"])
    tokens, _ = make_hook()(iter([pack_rollouts([ROLLOUT])]), make_chunk("dense").module.to("meta"))
    assert tokens.is_meta


def test_padding_does_not_count_in_the_losses_of_routers(make_chunk):
    from megatron.core.pipeline_parallel import get_forward_backward_func

    chunk = make_chunk("moe", **AUXILIARY | {"moe_z_loss_coeff": None})
    plain = pack_rollouts([ROLLOUT])
    rollout = Rollout(
        tokens=(3, 4, 5),
        rollout_log_probs=(0.0,) * 3,
        text="",
        finish_reason="stop",
        policy_version=0,
        advantage=1.0,
        old_log_probs=(-1.0, -2.0, -3.0),
    )
    padded = make_microbatch([((1, 2), rollout)], num_tokens=16)
    assert plain.tokens.tolist() == padded.tokens[:5].tolist() and padded.is_padding.sum() == 11
    gradients = []
    for microbatch in (plain, padded):
        chunk.zero_grad_buffer()
        run: Any = get_forward_backward_func()
        run(
            forward_step_func=make_hook(),
            data_iterator=iter([microbatch]),
            model=chunk,
            num_microbatches=1,
            seq_length=64,
            micro_batch_size=1,
            forward_only=False,
        )
        gradients.append({name: parameter.main_grad.clone() for name, parameter in chunk.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("sizes", "kind", "options", "message"),
    [
        ("pipeline", "dense", {}, "set variable_seq_lengths to True, and moe_token_dispatcher_type to 'alltoall'"),
        ("expert", "moe", {}, "set moe_token_dispatcher_type to 'alltoall'"),
    ],
)
def test_layouts_that_need_rows_of_one_length_are_refused(make_chunk, monkeypatch, sizes, kind, options, message):
    from megatron.core import parallel_state

    chunk = make_chunk(kind, moe_token_dispatcher_type="allgather")  # Megatron's default, as are rows of one length
    monkeypatch.setattr(parallel_state, f"get_{sizes}_model_parallel_world_size", lambda: 2)
    with pytest.raises(ValueError, match=message):
        make_hook()(iter([pack_rollouts([ROLLOUT])]), chunk)


def test_process_groups_must_be_initialized_first(monkeypatch):
    from megatron.core import parallel_state

    monkeypatch.setattr(parallel_state, "model_parallel_is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="initialize_model_parallel before policy_step"):
        policy_step(lambda *_: None, num_sequences=1, num_microbatches=1, vocab_size=8)
    with pytest.raises(RuntimeError, match="initialize_model_parallel before pack_rollouts"):
        pack_rollouts([ROLLOUT])
