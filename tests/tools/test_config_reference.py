"""The reference of the configuration has every field of a recipe, with its type, default and meaning."""

import dataclasses
import re
import typing

import pytest

from megatron_sspo.objective import Correction, Penalties
from megatron_sspo.run import Run
from megatron_sspo.types import Sampling
from tools.config_reference import reference

ROW = re.compile(r"^\| `(\w+)` \| (.+) \| (\*\*required\*\*|`.*`) \| (.*) \|$", re.MULTILINE)


def classes(found: type, seen: dict[str, type]) -> dict[str, type]:
    """Returns the dataclasses of the configuration, by name."""
    seen[found.__name__] = found
    for hint in typing.get_type_hints(found).values():
        waiting = [hint]
        while waiting:
            part = waiting.pop()
            waiting += typing.get_args(part)
            if isinstance(part, type) and dataclasses.is_dataclass(part) and part.__name__ not in seen:
                classes(part, seen)
    return seen


CLASSES = classes(Run, {})
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", reference(), re.MULTILINE | re.DOTALL))


def test_every_class_has_a_section() -> None:
    assert {Sampling, Penalties, Correction} <= set(CLASSES.values())
    assert set(SECTIONS) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_has_a_row(name: str) -> None:
    rows = ROW.findall(SECTIONS[name])
    fields = dataclasses.fields(CLASSES[name])
    assert [row[0] for row in rows] == [field.name for field in fields]
    for (field_name, kind, default, meaning), field in zip(rows, fields, strict=True):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        assert (default == "**required**") == required, field_name
        assert kind and meaning, f"{name}.{field_name} needs a comment"
        if isinstance(field.default, (int, float, str)):
            assert default.strip("`") == repr(field.default)
