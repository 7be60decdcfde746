"""The transport by a folder on a disk, with a stand-in for the session."""

from types import SimpleNamespace

from megatron_sspo.rollout.weight_sync.disk import DiskTransport
from megatron_sspo.weights.formats.hf_folder import HFFolder
from tests.rollout import tiny_models


def test_what_a_killed_trainer_has_left_is_removed(folders, tmp_path):
    left = tmp_path / "weights-3.partial-1a2b3c4d"
    left.mkdir()
    loaded = []
    session = SimpleNamespace(num_bytes=0, servers={}, begin=lambda *_: None, end=lambda *_: None)
    session.post = lambda _, content: loaded.append(sorted(HFFolder(content["model_path"]).shapes())) or {}
    weights = tiny_models.weights(folders["llama_tied"])
    DiskTransport(tmp_path, folders["llama_tied"]).send(session, weights.items(), "run-7")
    assert len(loaded[0]) == len(weights) and not list(tmp_path.iterdir())
