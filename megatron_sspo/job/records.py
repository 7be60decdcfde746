"""`Records`: a run's configuration, metrics and rollouts, in files that rank 0 writes."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.files.writing import write_atomically, write_rows
from megatron_sspo.policy.metrics import UpdateRecord, weights_by_sequence
from megatron_sspo.rollout.constant_reward import ConstantReward
from megatron_sspo.run import Run
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.run_folder.rollouts import write_examples
from megatron_sspo.types import Batch, rollouts_of

_log = logging.getLogger(__name__)


class Records:
    """The files of a run; opening them writes the configuration and removes the rows after the checkpoint.

    Args:
        folder: the run's folder, which exists.
        update: the last update of the checkpoint that the run resumes from; None starts a new run.

    Attributes:
        evaluations: the rows of the evaluations before a resumption.
        writer: the writer of rows, which holds them back from the trackers while an evaluation is in progress.

    Raises:
        UserError: a file cannot be written or read, or a tracker cannot be started.
    """

    def __init__(self, run: Run, folder: Path, *, update: int | None, tokenizer: Any) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self._constant_reward = ConstantReward.of_run(run, tokenizer)
        config = config_to_json(run)
        with os_errors_as_user_errors(folder):
            write_atomically(folder / "config.json", json.dumps(config, indent=1))
            for name in (metrics_files.METRICS, metrics_files.EVALUATIONS, metrics_files.ROLLOUTS):
                metrics_files.truncate_after(folder / name, -1 if update is None else update)
            self.evaluations = metrics_files.read(folder / metrics_files.EVALUATIONS)
            first = 0 if update is None else update + 1
            self.writer = metrics_files.MetricsWriter(folder, run.tracking, run.name, config, first_step=first)

    def write_update(self, row: Mapping[str, float], batch: Batch, record: UpdateRecord) -> None:
        """Appends the row of an update, replaces the file of rollouts, and warns of a constant reward."""
        self.writer.write(metrics_files.METRICS, row)
        weights = weights_by_sequence(record, [rollout.num_response_tokens for rollout in rollouts_of(batch)])
        with os_errors_as_user_errors(self._folder):
            path = self._folder / metrics_files.ROLLOUTS
            write_examples(path, int(row["update"]), batch, weights, self._tokenizer)
        if warning := self._constant_reward.look(row, batch):
            _log.warning("%s", warning)

    def write_evaluation(self, row: Mapping[str, float], answers: Sequence[Mapping[str, Any]]) -> None:
        """Appends the row of an evaluation, and replaces the file of answers."""
        # the answers come first: after a kill in between, the evaluation is repeated, because it has no row
        with os_errors_as_user_errors(self._folder):
            write_rows(self._folder / "evaluation_responses.jsonl", answers)
        self.writer.write(metrics_files.EVALUATIONS, row)
