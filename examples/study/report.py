"""Writes the verdicts and the figures of the study: `python -m examples.study.report [--output docs/study]`.

The results are those of `collect.py` and `mechanism.py`. What was not run is named in the page, and is no error.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.study.collect import RESULTS
from examples.study.data import read_study
from examples.study.figures import draw
from examples.study.verdicts import page, sections


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `verdicts.md` and the figures into the output folder."""
    parser = argparse.ArgumentParser(prog="python -m examples.study.report")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the collected files")
    parser.add_argument("--output", type=Path, default=Path("docs/study"))
    parser.add_argument("--commit", default="", help="of the clone that the runs were made from")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    study = read_study(options.results)
    undrawn = draw(study, options.output)
    (options.output / "verdicts.md").write_text(page(study, sections(study), undrawn, options.commit), encoding="utf-8")
    print(f"{len(study.results)} runs; verdicts.md is in {options.output}, with all figures but {len(undrawn)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
