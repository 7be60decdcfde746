"""The law of layouts on GPUs: one global batch gives the same in every layout, by NCCL.

In float32 without Transformer Engine the law and its bounds are those of the CPUs, 1e-5. In bfloat16 two layouts
round at other places: a product over two ranks is two products whose sum is rounded. On one H200 a bfloat16 pass was
up to 0.024 from float32 in log-probs (root mean square) and up to 0.075 in the gradient (relative, of the whole), so
two passes that are both right are at most twice that apart, 0.05 and 0.15. A layout with a wrong sum is far off: half
of a gradient that is missing is 0.5, and so it is in a tensor, of which 0.4 is allowed (on CPUs: 0.08). All layouts
of bfloat16 replay the same routes, because rounding may choose another of two experts that are almost equal: on CPUs,
two tensor ranks gave a gradient 0.18 apart without, and 0.03 with them.
"""

import pytest

from megatron_sspo.policy.with_cuda.installed import has_transformer_engine
from tests.gpu.ranks.conftest import RANKS
from tests.policy import test_layouts as law

layouts = law.layouts
LOG_PROBS, GRADIENT, OF_A_TENSOR = 0.05, 0.15, 0.4
OTHERS = {
    name: layout
    for name, layout in layouts.ON_GPUS.items()
    if name != layout.reference and layout.parallel.num_processes <= RANKS
}


def of(dtype):
    return pytest.mark.parametrize("name", [name for name, layout in OTHERS.items() if layout.dtype == dtype])


@of("float32")
def test_float32(measured, note, name):
    layout = OTHERS[name]
    if has_transformer_engine():
        pytest.skip("Transformer Engine multiplies float32 in TensorFloat-32, and has no context parallelism for it")
    for each in (law.test_old_log_probs, law.test_metrics_of_three_updates, law.test_weights_after_three_updates):
        each(measured, note, name)
    law.test_loss_and_gradient_norm_of_the_first_update(measured, note, name)
    for case in layouts.cases_of(name):
        law.test_gradient_of_every_parameter(measured, note, name, case)
    if measured(name)["shared"] is not None:
        law.test_shared_prompts_change_nothing(measured, note, name)
    if layout.batch == "routed":
        assert measured(name)["routes"] == measured(layout.reference)["routes"]
    law.test_every_rank_sees_the_same(measured, name)
    law.test_every_way_to_gather_gives_the_same_weights(measured, name)


@of("bfloat16")
def test_bfloat16(measured, note, name):
    found, expected = measured(name), measured(OTHERS[name].reference)
    law.test_every_rank_sees_the_same(measured, name)
    law.test_every_way_to_gather_gives_the_same_weights(measured, name)
    parts = {"": found} | ({"shared, ": found["shared"]} if found["shared"] is not None else {})
    for part, values in parts.items():
        pairs = zip(values["old_log_probs"], expected["old_log_probs"], strict=True)
        squares = [(a - b) ** 2 for one, other in pairs for a, b in zip(one, other, strict=True)]
        distance = (sum(squares) / len(squares)) ** 0.5
        gradient = max(case["whole"] for case in values["gradients"].values())
        worst = max(values["gradients"].values(), key=lambda case: case["gradient"])
        note(name, f"{part}old log-probs", distance)
        note(name, f"{part}gradient", gradient)
        note(name, f"{part}gradient of a tensor", worst["gradient"])
        assert distance < LOG_PROBS, f"{name}: {part}old log-probs are {distance} apart (root mean square)"
        assert gradient < GRADIENT, f"{name}: {part}gradients are {gradient} apart, relatively"
        assert worst["gradient"] < OF_A_TENSOR, f"{name}: {part}{worst['tensor']} is {worst['gradient']} apart"
