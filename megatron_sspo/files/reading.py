"""Reads files from outside; damage is named in one sentence."""

import json
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError

_DOWNLOAD = "download or copy it again"


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file; raises UserError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_text(path: Path, *, remedy: str = _DOWNLOAD) -> str:
    """Returns the content of a text file in UTF-8; `remedy` is what to do about a damaged file, for the message."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start:,} is not valid; {remedy}") from error


def read_json(path: Path, *, remedy: str = f"correct it, or {_DOWNLOAD}") -> dict[str, Any]:
    """Returns the object in a JSON file; `remedy` is what to do about a damaged file, for the message."""
    text = read_text(path, remedy=remedy)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; {remedy}")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parses JSON; raises ValueError if the text is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_json(value: Any) -> Any:
    """Returns the list or object that a text in a row spells in JSON; any other value, and any other text, as it is."""
    try:
        found = parse_json(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    return found if isinstance(found, (dict, list)) else value
