"""The figures of the study: which there are, and which cannot be drawn yet."""

from pathlib import Path
from types import ModuleType

from examples.study.data import Study
from examples.study.drawings import (
    gates,
    lengths,
    map,
    mechanism,
    mild,
    paper,
    pretrained,
    rate_rules,
    replay,
    staleness,
    temperatures,
)

DRAWINGS: dict[str, ModuleType] = {
    "staleness.png": staleness,
    "map.png": map,
    "gates.png": gates,
    "mechanism.png": mechanism,
    "temperatures.png": temperatures,
    "mild.png": mild,
    "lengths.png": lengths,
    "replay.png": replay,
    "pretrained.png": pretrained,
    "rate_rules.png": rate_rules,
    "paper_figures.png": paper,
}


def draw(study: Study, folder: Path) -> dict[str, str]:
    """Draws the figures that have runs into a folder, and returns the others with what was not run.

    The picture of an earlier report is removed if it cannot be drawn any more, so that the page and the folder agree.

    Raises:
        UserError: a picture cannot be written.
    """
    undrawn = {}
    for name, drawing in DRAWINGS.items():
        missing = drawing.missing(study)
        if missing:
            undrawn[name] = f"not run ({missing})"
            (folder / name).unlink(missing_ok=True)
        else:
            drawing.draw(study, folder / name)
    return undrawn
