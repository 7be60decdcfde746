"""`random_weights`: the initial weights of a run whose model is not pretrained."""

from pathlib import Path

from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.files.removing import remove
from megatron_sspo.processes import agree
from megatron_sspo.run import Run
from megatron_sspo.weights.formats.random import INITIAL_MODEL, write_random_weights
from megatron_sspo.weights.transformers_config import transformers_errors_as_user_errors


def random_weights(run: Run, folder: Path, *, is_new: bool) -> Path:
    """Returns the Hugging Face folder of random weights, which rank 0 makes in the run's folder. A collective.

    Args:
        is_new: whether the run has no checkpoint; an earlier attempt may then have used another seed.
    """
    source, destination = Path(run.model.path), folder / INITIAL_MODEL

    def write() -> None:
        if is_new:
            remove(destination)
        with transformers_errors_as_user_errors(source / "config.json"), os_errors_as_user_errors(destination):
            write_random_weights(source, destination, run.seed)

    agree.run_on_rank_0(write)
    return destination
