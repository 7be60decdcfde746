"""Converted checkpoints in every layout: the logits are Transformers', and exported weights are equal to the bit."""

import json
from pathlib import Path

import converted
import pytest
from launcher import launch

from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify

pytestmark = pytest.mark.slow

every_layout = pytest.mark.parametrize(("kind", "name"), converted.LAYOUTS)


@pytest.fixture(scope="module")
def results(folders, batches, tmp_path_factory):
    """(kind, layout) -> the folder of what was measured and written for it."""
    checkpoints, root = tmp_path_factory.mktemp("checkpoints"), tmp_path_factory.mktemp("converted")
    for kind in dict.fromkeys(kind for kind, _ in converted.LAYOUTS):
        convert(folders[kind], checkpoints / kind)
    launched = set()

    def of(kind, name):
        size = converted.LAYOUTS[kind, name].num_processes
        if size not in launched:
            launched.add(size)
            arguments = (folders["moe"].parent, checkpoints, batches["moe"].parent, root)
            launch(Path(converted.__file__), size, *arguments, seconds=400)
        return root / f"{kind} {name}"

    return of


@every_layout
def test_logits_are_those_of_transformers(results, kind, name):
    for rank in json.loads((results(kind, name) / "measured.json").read_text()):
        assert rank["scale"] > 0.5 and max(rank["own"], rank["megatron"]) < 1e-4, rank


@every_layout
def test_every_weight_is_loaded_to_the_bit(results, kind, name):
    for rank in json.loads((results(kind, name) / "measured.json").read_text()):
        assert rank["names"] and rank["own_is_equal"] and rank["megatron_is_equal"], rank


@every_layout
def test_the_export_is_the_conversion_of_the_trainers_checkpoint(results, kind, name, folders, tmp_path):
    folder = results(kind, name)
    convert(folder / "update-000001", tmp_path / "converted")
    assert verify(folder / "exported", tmp_path / "converted").differences == []
    assert verify(folder / "exported", folder / "update-000001").differences == []
    assert (tmp_path / "converted" / "tokenizer.json").exists()
    moved = verify(folder / "exported", folders[kind])
    still = moved.num_tensors - len(moved.differences)
    unused = {"glm4": 12, "minimax": 6}.get(kind, 0)  # the matrices of experts without a token
    assert still == unused, "weights that the step did not move prove nothing"
