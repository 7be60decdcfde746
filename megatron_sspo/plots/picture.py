"""Checks the path of a picture, imports matplotlib, and writes pictures atomically."""

import logging
import os
import stat
import warnings
from pathlib import Path
from typing import Any

from megatron_sspo.errors import UserError, os_errors_as_user_errors

_FORMATS = (".png", ".svg", ".pdf")


def check_output(path: Path) -> None:
    """Checks that a picture can be written to a path.

    Raises:
        UserError: the suffix is not a picture format, the folder does not exist or is not writable, or the path exists
            and is not a regular file.
    """
    with os_errors_as_user_errors():
        if path.suffix not in _FORMATS:
            raise UserError(f"{path} is not a picture: choose a suffix of {', '.join(_FORMATS)} with --output")
        if not path.parent.is_dir():
            raise UserError(f"there is no folder {path.parent}: make it, or name another with --output")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path} exists and is not a regular file: choose another with --output")
        if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
            raise UserError(f"{path.parent} cannot be written: no permission; name another folder with --output")


def import_matplotlib() -> Any:
    """Imports matplotlib with a backend that needs no display, and returns the module.

    Raises:
        UserError: matplotlib finds no writable folder for its cache.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warning about a temporary cache folder
    try:
        import matplotlib
    except OSError as error:
        raise UserError(
            f"matplotlib cannot start ({' '.join(str(error).split())}): set MPLCONFIGDIR to a folder that can be "
            "written"
        ) from error
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
