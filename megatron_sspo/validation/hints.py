"""Whether a value fits the annotation of a function's parameter or of a dataclass that is not this package's."""

import json
import warnings
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

_CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True)


class Unfit(Exception):
    """The value is not of the annotation."""


def fitted(value: Any, hint: Any) -> Any:
    """The value as the annotation has it: what a list of JSON writes for a tuple becomes one, and a string a Path.

    A value is taken as it is where the annotation cannot be looked into, such as a name that is not defined.

    Raises:
        Unfit: a value of another type.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pydantic, about annotations that are written in an unusual way
            adapter: TypeAdapter[Any] = TypeAdapter(tuple[hint], config=_CONFIG)  # pyright: ignore
    except Exception:  # pydantic's own, a NameError: whatever the annotation is, it is not the user's value
        return value
    try:
        return adapter.validate_python((value,))[0]
    except ValidationError:
        pass
    except Exception:  # of an isinstance check that a protocol does not allow
        return value
    try:
        return adapter.validate_json(json.dumps([value], allow_nan=False))[0]
    except (ValidationError, TypeError, ValueError, RecursionError):
        raise Unfit from None
