"""The loss hook in a training loop of another project."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import plugin_loop
import pytest
import torch
from launcher import launch
from layouts import AUXILIARY
from tiny_policy import VOCAB_SIZE, make_run

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.errors import UserError
from megatron_sspo.objective import Correction, sspo
from megatron_sspo.policy.plugin import pack_rollouts, policy_step
from megatron_sspo.policy.policy import Policy
from tests.responses import response

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": [-1.0, -2.0]}, "old_log_probs has 2 values for 3 tokens"),
        ({"advantage": [1.0, -1.0]}, "token_advantages has 2 values for 3 tokens"),
        ({"advantage": None}, "rollout 0 has no 'advantage'"),
        ({"olds": [-1.0] * 3}, "rollout 0 has 'olds', and its keys may be prompt, response, advantage, old"),
        ({"response": [1.7, 2.0, 3.0]}, "tokens: they are float64 .* must be integers"),
    ],
)
def test_rollouts_that_would_train_something_else_are_refused(device, change, message):
    with pytest.raises((ValueError, UserError), match=message):
        pack_rollouts([{**ROLLOUT, **change}])


def test_values_may_be_tensors_and_log_probs_of_observations_anything(device):
    old = torch.tensor([-1.0, NAN, -3.0], requires_grad=True)
    found = pack_rollouts([{**ROLLOUT, "advantage": torch.tensor(2.0), "old": old, "observed": [(1, 2)]}])
    assert found.advantages.tolist() == [2.0] and found.old_log_probs.tolist() == [-1.0, -3.0]


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


def test_padding_does_not_count_in_the_losses_of_routers(make_chunk):
    from megatron.core.pipeline_parallel import get_forward_backward_func

    chunk = make_chunk("moe", **AUXILIARY | {"moe_z_loss_coeff": None})
    plain = pack_rollouts([ROLLOUT])
    rollout = response((3, 4, 5), advantage=1.0, old_log_probs=(-1.0, -2.0, -3.0))
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
