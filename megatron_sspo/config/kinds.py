"""The kinds of configuration values. A field's annotation names its kind, with its range and its description."""

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

LARGEST = 2**31 - 1  # the largest int32, the type that torch, NCCL and the servers count with

_FOLDER_NAME = (
    "the plain name of a folder, which is made in `output`: letters, digits, spaces and signs without /, beginning "
    "with a letter, a digit or _"
)
_SET_NAME = "a name of letters, digits, - and _ that does not begin with -"


def _as_path(value: Any) -> Any:
    """Converts a Path to text, and replaces ~ by the home folder, which a shell does not do within an argument."""
    return os.path.expanduser(value) if isinstance(value, (str, PurePath)) else value


def _as_tuple(value: Any) -> Any:
    """Converts a list to a tuple, and a string that is not empty to a tuple of one, as `--set` does."""
    return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str) and value else value


def _matching(pattern: str, description: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise PydanticCustomError("name", "Input should be {what}", {"what": description})
        return text

    return AfterValidator(check)


AsTuple = BeforeValidator(_as_tuple)
AsPath = BeforeValidator(_as_path)

Count = Annotated[int, Field(ge=1, description="a whole number of 1 or more")]
Amount = Annotated[int, Field(ge=0, description="a whole number of 0 or more")]
GroupSize = Annotated[
    int, Field(ge=2, description="at least 2, a whole number: an advantage compares responses of a group")
]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a finite number above 0")]
# a run marks its progress once a second at most, and a shorter timeout would take a slow second for a hang
Timeout = Annotated[float, Field(ge=5, allow_inf_nan=False, description="a finite number of 5 or more, in seconds")]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, description="a finite number of 0 or more")]
Finite = Annotated[float, Field(allow_inf_nan=False, description="a finite number")]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False, description="a finite number of 1 or more")]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False, description="a number of 0 or more and below 1")]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, description="a number above 0 and at most 1")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="a number from 0 to 1")]
Text = Annotated[str, Field(description="a string")]
Line = Annotated[str, Field(pattern="^.*$", description='a string of one line, or ""')]
FilePath = Annotated[str, Field(min_length=1, description="a path, as a string"), AsPath]
MaybePath = Annotated[str, Field(description='a path, as a string, or ""'), AsPath]
Plugin = Annotated[
    str,
    Field(min_length=1, description="a name, file.py:attribute or package.module:attribute, as a string"),
    AsPath,
]
MaybePlugin = Annotated[
    str, Field(description='a name, file.py:attribute or package.module:attribute, as a string, or ""'), AsPath
]
FolderName = Annotated[str, _matching(r"\w[^/\n\0]{0,199}", _FOLDER_NAME), Field(description=_FOLDER_NAME)]
SetName = Annotated[str, _matching(r"\w[\w-]*", _SET_NAME), Field(description=_SET_NAME)]
StopString = Annotated[str, Field(min_length=1, description="a string that is not empty")]

# options of a plug-in: `check_options` compares them with the parameters of its function
Options = Annotated[Mapping[str, Any], Field(description="a dict, {option: value}")]
# plug-ins by name, each with its options
PluginOptions = Annotated[Mapping[str, Options], Field(description="a dict, {name: {option: value}}")]
# fields of one of Megatron's dataclasses: `policy/options.py` compares them with its annotations
Fields = Annotated[Mapping[str, Any], Field(description="a dict, {field: value}")]
