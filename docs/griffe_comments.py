"""Extension of Griffe: the comment beside a field of a dataclass becomes its description in the API reference."""

from functools import cache
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension

from tools.config_reference import read_classes


class FieldComments(Extension):
    """Gives fields of dataclasses the text of their comments."""

    def on_attribute_instance(self, *, attr: Attribute, **kwargs: Any) -> None:
        """Describes one field."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            text = _comments(Path(str(attr.filepath))).get((attr.parent.name, attr.name), "")
            if text:
                attr.docstring = Docstring(text, parent=attr)


@cache
def _comments(path: Path) -> dict[tuple[str, str], str]:
    classes = read_classes(path.read_text(encoding="utf-8"))
    return {(found.name, field.name): field.comment for found in classes for field in found.fields}
