"""Settings of all tests."""

import gc
import logging
import os
import shutil
from collections import Counter

import pytest
from hypothesis import settings

# The machine may be busy with other work, so a slow example is not a failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# In CI, which installs bubblewrap, tests that need it fail without it.
LEAVES_OUT = shutil.which("bwrap") is None and "CI" not in os.environ
NO_BUBBLEWRAP = "bubblewrap is missing (make install-sandbox)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that need bubblewrap where it is missing.

    Puts the files with slow tests first for pytest-xdist, where a slow file that begins last would run alone.
    """
    for item in items if LEAVES_OUT else ():
        if item.get_closest_marker("bubblewrap"):
            item.add_marker(pytest.mark.skip(reason=NO_BUBBLEWRAP))
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


@pytest.fixture(scope="session", autouse=True)
def without_bubblewrap():
    """Leaves out a test where it starts a sandbox, so that those that do need no marker."""
    with pytest.MonkeyPatch.context() as patch:
        if LEAVES_OUT:
            patch.setattr("sspo_sandbox.sandbox.find_bubblewrap", lambda: pytest.skip(NO_BUBBLEWRAP))
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the tests that need bubblewrap and were left out."""
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if NO_BUBBLEWRAP in str(each.longrepr)]
    if skipped:
        files = Counter(each.nodeid.partition("::")[0] for each in skipped)
        names = "".join(f"\n  {number} of {name}" for name, number in sorted(files.items()))
        terminalreporter.write_line(f"{len(skipped)} tests were not run, because {NO_BUBBLEWRAP}:{names}")


@pytest.fixture(autouse=True)
def logger_restored():
    """Restores the package's logger, to which a `Display` attaches itself for the rest of the process."""
    logger = logging.getLogger("megatron_sspo")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before
