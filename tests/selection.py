"""The cases of this session's tests, for fixtures that prepare all cases at once."""

from typing import Any

import pytest


def selected(session: pytest.Session, parameter: str) -> set[Any]:
    """Returns the values of a parameter in the tests that are to run."""
    found = [
        item.callspec.params
        for item in session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not item.get_closest_marker("skip")
    ]
    return {params[parameter] for params in found if parameter in params}
