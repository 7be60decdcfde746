"""Settings of all tests."""

import gc
import logging

import pytest
from hypothesis import settings

# The machine may be busy with other work, so a slow example is not a failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files with slow tests first for pytest-xdist, where a slow file that begins last would run alone."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Excludes the collected tests from garbage collection, which Megatron does at each checkpoint."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes by their argument: compressed data contain the time, and the workers have to find the same tests."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def logger_restored():
    """Restores the package's logger, to which a `Display` attaches itself for the rest of the process."""
    logger = logging.getLogger("megatron_sspo")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before
