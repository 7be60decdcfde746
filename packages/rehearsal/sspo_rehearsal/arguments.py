"""The options of `megatron-sspo launch --rehearse`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_arguments(command: Any, as_path: Callable[[str], Path]) -> None:
    """Adds the options besides `--rehearse` to a parser or to a group of one."""
    add = command.add_argument
    add("--stage", type=int, metavar="S", help="rehearse only pipeline stage S, from 1 (default: every stage)")
    add("--rank", type=int, metavar="R", help="rehearse only rank R")
    add("--machine", default="h100x8", metavar="NAME", help="machine of the predicted time (default: %(default)s)")
    skew = "how many times as often the experts of the first expert rank are chosen as the others (default: 1)"
    add("--skew", type=float, default=1.0, metavar="X", help=skew)
    most = "(default: as many as it may have)"
    add("--prompt-tokens", type=int, default=0, metavar="N", help=f"tokens of each prompt {most}")
    add("--response-tokens", type=int, default=0, metavar="N", help=f"tokens of each response {most}")
    microbatches = "the largest number of microbatches to rehearse (default: enough to fill the pipeline, and one more)"
    add("--microbatches", type=int, default=0, metavar="N", help=microbatches)
    add("--output", type=as_path, metavar="FILE", help="the JSON to write (default: OUTPUT/NAME.rehearsal.json)")
