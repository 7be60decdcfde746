"""Encodes immutable plain data as JSON, and decodes it. A list's first item names the type; no message is executed."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable

from megatron_sspo.sandbox.inside.proxies.special import is_special

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from typing import Any

    Convert = Callable[[Any], Any]

_EXACT = 2**53  # a larger integer is sent in hexadecimal, which takes linear time to parse
_DTYPE = r"[<>|=][biufcUSmM]\d{1,4}(\[\w{1,8}\])?"  # compiled only when needed, by few programs

# What `inspect` reads of a function's code. It shows the parameters, not the function's constants.
_CODE_ATTRIBUTES = (
    *("co_name", "co_flags", "co_varnames", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    "co_firstlineno",
)
_ATOMS = frozenset((str, float, bool, type(None)))


# Types of the standard library that pass by value, each with a function for the arguments that rebuild the value.
_REBUILT: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "decimal.Decimal": lambda value: (str(value),),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.datetime": lambda value: (*value.timetuple()[:6], value.microsecond, _zone(value), value.fold),
    "datetime.time": lambda value: (
        *(value.hour, value.minute, value.second, value.microsecond, _zone(value), value.fold),
    ),
    "datetime.timezone": lambda value: value.__getinitargs__(),
    "zoneinfo.ZoneInfo": lambda value: (value.key,),
    "uuid.UUID": lambda value: (value.hex,),
    "pathlib.PosixPath": lambda value: (str(value),),
    "pathlib.PurePosixPath": lambda value: (str(value),),
    "pathlib.PureWindowsPath": lambda value: (str(value),),
    "re.Pattern": lambda value: (value.pattern, value.flags),
    "array.array": lambda value: (value.typecode, value.tolist()),
    "types.SimpleNamespace": lambda value: (vars(value),),
    "argparse.Namespace": lambda value: (vars(value),),
    "collections.ChainMap": lambda value: tuple(value.maps),
    "builtins.mappingproxy": lambda value: (dict(value),),
    "builtins.code": lambda value: ({name: getattr(value, name) for name in _CODE_ATTRIBUTES},),
    "dataclasses._FIELD_BASE": lambda value: (value.name,),
    "dataclasses._MISSING_TYPE": lambda value: (),
    "ipaddress.IPv4Address": lambda value: (str(value),),
    "ipaddress.IPv6Address": lambda value: (str(value),),
    "ipaddress.IPv4Network": lambda value: (str(value),),
    "ipaddress.IPv6Network": lambda value: (str(value),),
    "builtins.slice": lambda value: (value.start, value.stop, value.step),
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "builtins.complex": lambda value: (value.real, value.imag),
    "builtins.dict_keys": lambda value: (list(value),),
    "builtins.dict_values": lambda value: (list(value),),
    "builtins.dict_items": lambda value: (list(value),),
}
# Functions that rebuild values whose type is not called with these arguments.
_BUILDERS: dict[str, Callable[..., Any]] = {
    "datetime.datetime": lambda *parts: _type_of("datetime.datetime")(*parts[:8], fold=parts[8]),
    "datetime.time": lambda *parts: _type_of("datetime.time")(*parts[:5], fold=parts[5]),
    "re.Pattern": lambda pattern, flags: re.compile(pattern, flags),
    "types.SimpleNamespace": lambda fields: _namespace("types.SimpleNamespace", fields),
    "builtins.code": lambda fields: _namespace("types.SimpleNamespace", fields),
    "argparse.Namespace": lambda fields: _namespace("argparse.Namespace", fields),
    "collections.ChainMap": lambda *maps: _type_of("collections.ChainMap")(*maps),
    "builtins.mappingproxy": lambda items: _type_of("types.MappingProxyType")(items),
    "dataclasses._FIELD_BASE": lambda name: _dataclass_mark(f"_FIELD{name.removeprefix('_FIELD')}"),
    "dataclasses._MISSING_TYPE": lambda: _dataclass_mark("MISSING"),
    "builtins.dict_keys": lambda keys: dict.fromkeys(keys).keys(),
    "builtins.dict_values": lambda values: dict(enumerate(values)).values(),
    "builtins.dict_items": lambda items: dict(items).items(),
}


def _dataclass_mark(name: str) -> Any:
    """Returns an object that `dataclasses` recognizes by its identity."""
    return getattr(importlib.import_module("dataclasses"), name)


def _namespace(name: str, fields: dict[str, Any]) -> Any:
    """Returns a namespace; special attributes are refused, since numpy or `copy` would act on those of the program."""
    if type(fields) is not dict or any(type(key) is not str or is_special(key) for key in fields):
        raise ValueError("a namespace with special attributes, or with names that the program computes")
    return _type_of(name)(**fields)


def _zone(value: Any) -> Any:
    """Returns the time zone of a time; that of a class of the program as its offset and name at this time."""
    zone = value.tzinfo
    if zone is None or f"{type(zone).__module__}.{type(zone).__qualname__}" in _REBUILT:
        return zone
    offset = value.utcoffset()
    return None if offset is None else _type_of("datetime.timezone")(offset, value.tzname() or "")


def _type_of(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)


def encode(value: Any, convert: Convert) -> Any:
    """Returns the value as JSON, or NotImplemented if it is not immutable plain data.

    Args:
        convert: a function that encodes the parts of the value.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -_EXACT < value < _EXACT else ["int", hex(value)]
    if kind is tuple or kind is frozenset:
        return [kind.__name__, *encode_items(value, convert)]
    if kind is bytes:
        return ["bytes", value.hex()]
    if value is Ellipsis or value is NotImplemented:
        return ["singleton", repr(value)]
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _REBUILT and (kind.__module__ == "builtins" or _is_real(name, kind)):
        return ["rebuilt", name, *map(convert, _REBUILT[name](value))]
    if kind.__module__ == "numpy" and is_numpy_scalar(value):
        return ["scalar", value.dtype.str, value.tobytes().hex()]
    return NotImplemented


def encode_items(items: Iterable[Any], convert: Convert) -> list[Any]:
    """Encodes each of many values; those that JSON can hold are kept as they are, which is faster."""
    return [
        item if (kind := type(item)) in _ATOMS or (kind is int and -_EXACT < item < _EXACT) else convert(item)
        for item in items
    ]


def decode_items(parts: Iterable[Any], convert: Convert) -> list[Any]:
    """Decodes each of many messages."""
    return [convert(part) if type(part) is list else part for part in parts]


def _is_real(name: str, kind: type) -> bool:
    """Returns whether a type is the one that its name says, and not a type of the program with the same name."""
    module, _, own = name.rpartition(".")
    return getattr(sys.modules.get(module), own, None) is kind


def is_numpy_scalar(value: Any) -> bool:
    """Returns whether a value is a number, a text or a time of numpy that passes by value."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return False
    return _passes_by_value(value.dtype)


def _passes_by_value(dtype: Any) -> bool:
    return (
        bool(re.fullmatch(_DTYPE, dtype.str)) and (dtype.kind not in "fc" or dtype.itemsize <= 16) and dtype.char != "g"
    )


def decode(message: list[Any], convert: Convert) -> Any:
    """Returns the value of a message that `encode` made, or NotImplemented for any other message.

    Args:
        convert: a function that decodes the parts of the value.
    """
    match message:
        case ["tuple", *parts]:
            return tuple(decode_items(parts, convert))
        case ["frozenset", *parts]:
            return frozenset(decode_items(parts, convert))
        case ["int", str(digits)]:
            return int(digits, 16)
        case ["bytes", str(digits)]:
            return bytes.fromhex(digits)
        case ["singleton", str(name)]:
            return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[name]
        case ["rebuilt", str(name), *parts] if name in _REBUILT:
            return (_BUILDERS.get(name) or _type_of(name))(*map(convert, parts))
        case ["scalar", str(dtype), str(content)] if re.fullmatch(_DTYPE, dtype):
            return _from_bytes(dtype, content)[0]
    return NotImplemented


def _from_bytes(dtype: str, content: str) -> Any:
    return importlib.import_module("numpy").frombuffer(bytes.fromhex(content), dtype=dtype)


def encode_array(value: Any, convert: Convert) -> list[Any]:
    """Returns an array's dtype, shape and content."""
    dtype = value.dtype
    if dtype.names:
        description = [[name, dtype[name].str] for name in dtype.names]
        if all(re.fullmatch(_DTYPE, part) for _, part in description):
            return [description, list(value.shape), [convert(item) for item in value.ravel().tolist()]]
    if dtype.hasobject or not _passes_by_value(dtype):
        return ["|O", list(value.shape), [convert(item) for item in value.ravel().tolist()]]
    return [dtype.str, list(value.shape), value.tobytes().hex()]


def decode_array(content: list[Any], convert: Convert) -> Any:
    """Returns the array that `encode_array` described."""
    numpy = importlib.import_module("numpy")
    match content:
        case [str(dtype), [*shape], str(digits)] if re.fullmatch(_DTYPE, dtype):
            return _from_bytes(dtype, digits).reshape(shape).copy()
        case ["|O", [*shape], [*items]]:
            made = numpy.empty(len(items), dtype=object)
            for place, item in enumerate(items):
                made[place] = convert(item)
            return made.reshape(shape)
        case [[*description], [*shape], [*items]] if all(re.fullmatch(_DTYPE, part) for _, part in description):
            dtype = numpy.dtype([(name, part) for name, part in description])
            return numpy.array([convert(item) for item in items], dtype=dtype).reshape(shape)
    raise ValueError("not an array")
