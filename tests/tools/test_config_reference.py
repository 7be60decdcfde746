"""The reference of the configuration has every field of a recipe, with its type, default and meaning."""

import dataclasses
import re

import pytest

from megatron_sspo import objective, run, types
from tools.config_reference import reference

ROW = re.compile(r"^\| `(\w+)` \| (.+) \| (\*\*required\*\*|`.*`) \| (.*) \|$", re.MULTILINE)


SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", reference(), re.MULTILINE | re.DOTALL))
CLASSES = {name: vars(run).get(name) or vars(types).get(name) or vars(objective)[name] for name in SECTIONS}


def test_every_class_has_a_section() -> None:
    """The dataclasses of run.py are all of the configuration's but four."""
    own = {name for name, value in vars(run).items() if getattr(value, "__module__", "") == run.__name__}
    dataclasses_of_run = {name for name in own if dataclasses.is_dataclass(vars(run)[name])}
    assert set(SECTIONS) == dataclasses_of_run | {"Sampling", "Penalties", "Correction", "Endpoint"}


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
