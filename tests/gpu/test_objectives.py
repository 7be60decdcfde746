"""Values and gradients of the objectives on the GPU, compared with the stored ones."""

import pytest
import torch

from tests.objective.reference_vectors import check_vector
from tests.objective.test_objectives import BUILD, VECTORS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", VECTORS, ids=[f"{i}-{case['objective']}" for i, case in enumerate(VECTORS)])
def test_vectors(device, case, dtype):
    with device:
        check_vector(case, BUILD[case["objective"]](**case["params"]), dtype)
