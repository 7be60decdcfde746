"""Settings of all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# The machine that runs the tests runs other things too: a test that is slow for once has not failed.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# They look for processes of sandboxes that are left behind, or make such processes meanwhile.
_SANDBOXES = (
    "sandbox/",
    "environment/",
    "examples/test_recipe_runs",
    "e2e/test_turns",
    "reward/test_code",
    "rollout/test_turns",
)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says which tests share a process of pytest-xdist: those of a file, which share fixtures, and those above."""
    for item in items:
        name = item.path.relative_to(Path(__file__).parent).as_posix()
        item.add_marker(pytest.mark.xdist_group("sandboxes" if name.startswith(_SANDBOXES) else name))
