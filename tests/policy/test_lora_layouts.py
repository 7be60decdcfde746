"""Layout independence of adapters: the gradient of every factor, its norm, and the merged weights after updates."""

import layouts
import pytest

pytestmark = pytest.mark.slow


def parameters(name):
    return pytest.param(name, marks=pytest.mark.long if name in layouts.ADAPTED_TOO else ())


adapted = pytest.mark.parametrize("name", [*map(parameters, layouts.ADAPTED)])
other_layout = pytest.mark.parametrize(
    "name", [parameters(name) for name, layout in layouts.ADAPTED.items() if name != layout.reference]
)


@adapted
def test_ranks_agree_and_every_way_to_gather_gives_the_merged_weights(measured, name):
    assert measured(name)["ranks_agree"] and measured(name)["parts_agree"]


@adapted
def test_shared_prompts_change_nothing(measured, name):
    worst = max(measured(name)["shared"]["gradients"].values(), key=lambda case: case["gradient"])
    assert worst["gradient"] < 1e-5, f"{name}: {worst}"


@other_layout
def test_gradient_of_every_factor(measured, note, name):
    for case, found in measured(name)["gradients"].items():
        note(name, "gradient", found["gradient"])
        assert found["loss"] < 5e-6, f"{name}: the loss of {case} differs by {found['loss']}, relatively"
        assert found["gradient"] < 1e-5, f"{name}: the gradient of {case} differs: {found}"


@other_layout
def test_norm_and_weights(measured, note, name):
    found, expected = measured(name), measured(layouts.MEASURED[name].reference)
    for key in ("policy/loss", "policy/grad_norm"):
        values = [one["updates"][0][key] for one in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-5), f"{name}: {key}"
    for moment in ("before", "after"):
        differences = {
            key: float((found[moment][key] - tensor).abs().max()) for key, tensor in expected[moment].items()
        }
        worst = max(differences, key=differences.__getitem__)
        note(name, moment, differences[worst])
        assert differences[worst] < 2e-5, f"{name}: weights {moment} the updates differ, most in {worst}"
