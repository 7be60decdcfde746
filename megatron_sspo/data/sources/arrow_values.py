"""Values of Arrow's columns, as they were before they became columns.

A float of 16 or 32 bits is the decimal that was written: 0.1, and not 0.10000000149011612. All records of a column have
the fields of all others, with a null for those that only others have, so that arguments of another tool would be among
those of a call. A null within a record is therefore left out.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_NARROW = {"float": np.float32, "halffloat": np.float16}


def reader_of(schema: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Returns a function that restores the values of a row of a pyarrow schema, in nested records and lists too."""
    kinds = {field.name: field.type for field in schema}
    return lambda row: {name: _read(value, kinds[name]) for name, value in row.items()}


def _read(value: Any, kind: Any) -> Any:
    if isinstance(value, float) and (narrow := _NARROW.get(str(kind))):
        return float(str(narrow(value)))
    if isinstance(value, dict) and kind.num_fields:
        kinds = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)}
        return {name: _read(part, kinds.get(name)) for name, part in value.items() if part is not None}
    if isinstance(value, list) and kind.num_fields == 1:
        return [_read(part, kind.field(0).type) for part in value]
    return value
