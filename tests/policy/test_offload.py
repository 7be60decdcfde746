"""The optimizer on the host gives the numbers and the checkpoints of the one on the device, to the bit."""

from pathlib import Path

import offloaded
import pytest
from launcher import launch


@pytest.mark.slow
def test_gradients_weights_and_checkpoints_are_equal_to_the_bit(folders, batches, tmp_path) -> None:
    launch(Path(offloaded.__file__), 2, folders["moe"].parent, batches["moe"].parent, tmp_path, seconds=600)
