"""Texts of the values of rows, by which two sets of rows are compared."""

import re
from collections.abc import Mapping
from typing import Any

# in the text of an object that does not define its own; an image of Pillow's writes it in capitals
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def canonical(value: Any) -> str:
    """Returns a text that is the same in every process for the same value, and another one for another value.

    JSON has no such text: keys of a dict may be of several types, a set has another order in another process, and the
    text of an object may contain its address.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{canonical(key)}: {canonical(item)}' for key, item in value.items()))}}}"
    if isinstance(value, (set, frozenset)):
        return f"set({', '.join(sorted(map(canonical, value)))})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(canonical, value))}]"
    return repr(value) if isinstance(value, str) else _ADDRESS.sub("", repr(value))
