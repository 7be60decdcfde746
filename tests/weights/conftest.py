import pytest

from tests.weights.tiny_checkpoints import KINDS, save


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """kind -> the folder of that tiny checkpoint. Not to be written into."""
    root = tmp_path_factory.mktemp("checkpoints")
    for kind in KINDS:
        save(kind, root / kind)
    return lambda kind: root / kind
