import pytest

from megatron_sspo.rollout.engines import embedded
from tests.rollout import tiny_models
from tests.rollout.receivers import submitter


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Maps each shape to the folder of a tiny model."""
    root = tmp_path_factory.mktemp("models")
    return {shape: tiny_models.build(root, shape) for shape in tiny_models.SHAPES}


@pytest.fixture(scope="session")
def loaded(folders):
    """Maps each shape to an engine with the weights of its folder, as policy version 3."""
    engines = {}
    for shape, folder in folders.items():
        engines[shape] = embedded.engine(folder)
        engines[shape].load_weights(tiny_models.weights(folder).items(), 3)
    return engines


@pytest.fixture
def submit():
    """A function that starts coroutines in a thread of their own, as an engine's does."""
    start, stop = submitter()
    yield start
    stop()
