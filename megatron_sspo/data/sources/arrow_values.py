"""Values of Arrow's columns, as they were before they became columns.

A float of 16 or 32 bits is the decimal that was written: 0.1, and not 0.10000000149011612. All records of a column have
the fields of all others, with a null for those that only others have, so that arguments of another tool would be among
those of a call. A null within a record is therefore left out.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def reader_of(schema: Any) -> Callable[[Any], Mapping[str, Any]]:
    """Returns a function that restores the values of a row, in nested records and lists too.

    Args:
        schema: the pyarrow schema of the rows.
    """
    kinds = {field.name: field.type for field in schema if field.type.num_fields or _is_narrow(field.type)}

    def read(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**row, **{name: _read(row[name], kind) for name, kind in kinds.items() if name in row}}

    return read if kinds else lambda row: row


def _is_narrow(kind: Any) -> bool:
    return str(kind) in ("float", "halffloat")


def _read(value: Any, kind: Any) -> Any:
    if isinstance(value, float) and _is_narrow(kind):
        return float(str((np.float32 if str(kind) == "float" else np.float16)(value)))
    if isinstance(value, dict) and kind.num_fields:
        kinds = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)}
        return {
            name: _read(part, kinds[name]) if name in kinds else part
            for name, part in value.items()
            if part is not None
        }
    if isinstance(value, list) and kind.num_fields == 1:
        return [_read(part, kind.field(0).type) for part in value]
    return value
