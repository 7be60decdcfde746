"""A run that is resumed in another layout has the same state, to the bit, and the same next updates."""

from pathlib import Path

import pytest
import resharded
import torch
from launcher import launch
from resharded import STEPS, origin
from resume import make_policy
from tiny_policy import VOCAB_SIZE

pytestmark = pytest.mark.slow
moved = pytest.mark.parametrize("name", [name for name, step in STEPS.items() if step.source])


@pytest.fixture(scope="module")
def results(folders, batches, device, tmp_path_factory) -> Path:
    """The folder that all steps have written into."""
    made = tmp_path_factory.mktemp("resharded")
    arguments = folders["moe"].parent, batches["moe"].parent, made
    for size, names in resharded.phases():
        if size > 1:
            launch(Path(resharded.__file__), size, *arguments, *names, seconds=400)
        for name in names if size == 1 else ():
            resharded.take(name, device, *arguments)
    return made


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Returns all whole tensors of a checkpoint, without the padding of the vocabulary."""
    from megatron.core import dist_checkpointing

    found = dist_checkpointing.load_plain_tensors(str(checkpoint))
    padded = ("word_embeddings.weight", "output_layer.weight")
    whole = {name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
    return {name: tensor[:VOCAB_SIZE] if name.endswith(padded) else tensor for name, tensor in whole.items()}


def common(checkpoint: Path) -> tuple[dict, set[tuple]]:
    """Returns the state of the schedule, and what the parameter groups have in common."""
    from megatron.core import dist_checkpointing

    from megatron_sspo.checkpoint.sharded import param_groups

    state = dist_checkpointing.load_common_state_dict(str(checkpoint))
    return state["scheduler"], {
        (group["step"], tuple(group["betas"]), group["eps"]) for group in param_groups(state["optimizer"])
    }


@moved
def test_the_whole_state_is_equal_to_the_bit(results, name):
    found, expected = tensors(results / name), tensors(results / STEPS[name].source)
    assert found.keys() == expected.keys()
    assert any("exp_avg_sq" in key for key in found)
    references = {key.removeprefix("reference."): found[key] for key in found if key.startswith("reference.")}
    assert references and not all(torch.equal(found[key], tensor) for key, tensor in references.items())
    assert not [key for key, tensor in expected.items() if not torch.equal(found[key], tensor)]
    assert common(results / name) == common(results / STEPS[name].source)
    (step, *_), *others = common(results / name)[1]
    assert (step, others) == (2, [])


in_float32 = pytest.mark.parametrize(
    "name", [name for name, step in STEPS.items() if step.source and step.dtype == "float32"]
)


@in_float32
def test_the_next_gradient_is_that_of_a_run_that_starts_in_the_new_layout(results, name):
    """Compares to the bit. The other run gets its weights through a Hugging Face folder: no loading code is shared."""
    ((loss, norm, _), gradient), _, ((loss_of_start, norm_of_start, _), expected) = torch.load(results / f"{name}.pt")
    assert (loss, norm) == (loss_of_start, norm_of_start)
    assert gradient.keys() == expected.keys()
    assert not [key for key, tensor in expected.items() if not torch.equal(gradient[key], tensor)]


@in_float32
def test_the_next_two_updates_are_those_of_the_run_that_was_not_interrupted(results, name):
    found, expected = (torch.load(results / f"{each}.pt") for each in (name, origin(name)))
    back = STEPS[name].parallel == STEPS[origin(name)].parallel  # otherwise layouts add up in different orders
    for number, rounding in ((0, 5e-6), (1, 2e-5)):
        ((loss, norm, rate), gradient), ((loss_before, norm_before, rate_before), before) = (
            each[number] for each in (found, expected)
        )
        assert rate == pytest.approx(rate_before, rel=1e-5 if not back else 0)  # by the effective sample size
        assert (loss, norm) == pytest.approx((loss_before, norm_before), rel=1e-5, abs=1e-6)
        difference = torch.tensor([float((gradient[key] - tensor).norm()) for key, tensor in before.items()]).norm()
        size = torch.tensor([float(tensor.norm()) for tensor in before.values()]).norm()
        print(f"{name}, update {number + 1}: {float(difference / size):.1e}")
        assert difference <= (0 if back else rounding) * size
    assert found[0][0][2] != found[1][0][2]  # the learning rate changes


def test_random_states_are_seeded_by_the_seed_and_the_update(results, folders, device):
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    def drawn(seed: int) -> tuple[list[float], list[float]]:
        policy = make_policy(folders["dense"], device, seed=seed, kl_in_reward=0.1, reference_every=1)
        torch.rand(seed + 1)
        policy.load_resharded(results / "dense, small buckets")
        with get_cuda_rng_tracker().fork():
            forked = torch.rand(3)
        return torch.rand(3).tolist(), forked.tolist()

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
