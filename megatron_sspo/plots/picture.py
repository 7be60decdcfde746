"""Checks the path of a picture, imports matplotlib, and writes pictures atomically."""

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError, os_errors_as_user_errors

_FORMATS = (".png", ".svg", ".pdf")


def check_output(path: Path) -> None:
    """Checks that a path is that of a picture in a folder, before it is drawn.

    Raises:
        UserError: the suffix is not a picture format, or the folder does not exist.
    """
    if path.suffix not in _FORMATS or not path.parent.is_dir():
        raise UserError(f"{path} is not a picture in a folder: choose a suffix of {', '.join(_FORMATS)} with --output")


def import_matplotlib() -> Any:
    """Imports matplotlib with a backend that needs no display, and returns the module."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warning about a temporary cache folder
    import matplotlib

    matplotlib.use("Agg")
    return matplotlib


def write_picture(figure: Any, path: Path, *, dpi: int) -> None:
    """Writes a temporary file beside `path`, in the format of its suffix, and renames it.

    Raises:
        UserError: the file cannot be written.
    """
    partial = path.with_name(f".{path.stem[:40]}.{os.getpid()}.partial")
    with os_errors_as_user_errors(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # the font lacks a letter of a name
        try:
            figure.savefig(partial, dpi=dpi, format=path.suffix.removeprefix("."))
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
