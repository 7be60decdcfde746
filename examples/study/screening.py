"""The choice of the six objectives of other papers that go on (docs/study.md, question h)."""

from collections.abc import Mapping

from examples.study.collect import RESULTS
from examples.study.data import Study, read_study
from examples.study.grid import SCREENING, SWEEPS
from megatron_sspo.errors import UserError

NUM_CHOSEN = 6


def chosen(study: Study) -> list[str]:
    """Returns the six labels with the largest mean of final in the screening; [] while runs are missing."""
    sweep = SWEEPS[SCREENING]
    finals: dict[str, list[float]] = {label: [] for label in sweep.objectives}
    for run in study.results:
        if run.sweep == SCREENING:
            finals[run.objective].append(run.final)
    num_runs = len(sweep.updates_per_sync) * len(sweep.rates) * sweep.seeds
    if any(len(found) < num_runs for found in finals.values()):
        return []
    return sorted(finals, key=lambda label: -sum(finals[label]))[:NUM_CHOSEN]  # a stable sort: equals keep their order


def chosen_objectives() -> Mapping[str, str]:
    """Returns label -> `--set objective=` of the six, by the collected results.

    Raises:
        UserError: runs of the screening are missing there.
    """
    labels = chosen(read_study(RESULTS))
    if not labels:
        raise UserError(
            f"the objectives of other papers are not chosen yet, because {RESULTS} lacks runs of the screening: run it "
            f'with --only "{SCREENING}", then python -m examples.study.collect'
        )
    return {label: SWEEPS[SCREENING].objectives[label] for label in labels}
