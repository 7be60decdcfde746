"""Fixtures for code of a user's that changes the whole process."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def default_dtype() -> Iterator[None]:
    """Restores torch's default dtype and device after the test."""
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
