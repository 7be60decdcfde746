"""Reading the files of rows that runs and evaluations leave."""

import json
from pathlib import Path
from typing import Any


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def sets(*assignments: str) -> list[str]:
    """Returns the options --set of these assignments."""
    return [word for assignment in assignments for word in ("--set", assignment)]
