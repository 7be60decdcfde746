"""The special methods and attributes of classes and objects that pass between the two processes."""

from __future__ import annotations

from types import SimpleNamespace

# Special methods that a mirrored class has if its original has them, each with the name of its operation.
UNARY = {
    **{f"__{name}__": name for name in ("len", "iter", "next", "reversed", "bool", "int", "float", "complex", "index")},
    **{f"__{name}__": name for name in ("neg", "pos", "abs", "invert", "trunc", "floor", "ceil", "hash", "enter")},
    **{f"__{name}__": name for name in ("aiter", "bytes", "fspath")},
}
BINARY = {
    **{f"__{name}__": name for name in ("lt", "le", "gt", "ge", "contains", "add", "sub", "mul", "truediv")},
    **{f"__{name}__": name for name in ("floordiv", "mod", "pow", "matmul", "divmod", "lshift", "rshift")},
    **{f"__{name}__": f"{name}_" for name in ("and", "or", "xor")},
}
_NOT_COMBINING = ("__lt__", "__le__", "__gt__", "__ge__", "__contains__")
INPLACE = {f"__i{name.strip('_')}__": f"i{name.strip('_')}" for name in BINARY if name not in _NOT_COMBINING}
REFLECTED = {f"__r{name.strip('_')}__": BINARY[name] for name in BINARY if name not in _NOT_COMBINING}
COMBINING = {name: operation for name, operation in BINARY.items() if name not in _NOT_COMBINING} | REFLECTED
OTHER = {
    **{f"__{name}__": name for name in ("call", "getitem", "setitem", "delitem", "exit", "round", "format")},
    "__missing__": "missing",
    **{f"__{name}__": name for name in ("str", "repr")},
}
ASYNC = ("__await__", "__aenter__", "__aexit__", "__anext__")
SPECIAL = frozenset((*UNARY, *BINARY, *INPLACE, *REFLECTED, *OTHER, *ASYNC, "__eq__"))
# Special methods that an object derived from plain data requests from the other side: none compares or searches it.
FORWARDED_BY_DERIVED = (
    "__call__",
    "__missing__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__enter__",
    "__exit__",
    "__str__",
    "__repr__",
)


def is_special(name: str) -> bool:
    """Returns whether a name is one that Python or a library may look up on an object by itself."""
    return name.startswith("__") and name.endswith("__")


READABLE: dict[str, tuple[type, ...]] = {
    "__name__": (str,),
    "__qualname__": (str,),
    "__module__": (str,),
    "__doc__": (str,),
    "__dict__": (dict,),
    "__annotations__": (dict,),
    "__defaults__": (tuple, type(None)),  # these are read by `inspect`
    "__kwdefaults__": (dict, type(None)),
    "__code__": (SimpleNamespace,),
    **dict.fromkeys(("__wrapped__", "__func__", "__self__"), (object,)),
    "__slots__": (tuple, list, str),
    "__members__": (dict,),
    "__match_args__": (tuple,),
    "__dataclass_fields__": (dict,),
}
