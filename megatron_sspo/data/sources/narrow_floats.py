"""Floats of 16 and 32 bits in columns, read as the decimals that were written: 0.1, and not 0.10000000149011612."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def reader_of(schema: Any) -> Callable[[Any], Mapping[str, Any]]:
    """Returns a function that replaces the narrow floats of a row, in nested records and lists too.

    Args:
        schema: the pyarrow schema of the rows.
    """
    narrow = {field.name: field.type for field in schema if _is_narrow(field.type)}

    def read(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**row, **{name: _read(row[name], kind) for name, kind in narrow.items() if name in row}}

    return read if narrow else lambda row: row


def _is_narrow(kind: Any) -> bool:
    return str(kind) in ("float", "halffloat") or any(_is_narrow(kind.field(n).type) for n in range(kind.num_fields))


def _read(value: Any, kind: Any) -> Any:
    if isinstance(value, float) and kind.num_fields == 0:
        narrow = {"float": np.float32, "halffloat": np.float16}.get(str(kind))
        return float(str(narrow(value))) if narrow else value
    if isinstance(value, dict) and kind.num_fields:
        kinds = {kind.field(n).name: kind.field(n).type for n in range(kind.num_fields)}
        return {name: _read(part, kinds[name]) if name in kinds else part for name, part in value.items()}
    if isinstance(value, list) and kind.num_fields == 1:
        return [_read(part, kind.field(0).type) for part in value]
    return value
