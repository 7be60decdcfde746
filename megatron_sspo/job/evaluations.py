"""`Evaluations`: the evaluation of a run in progress, and the rows of the earlier evaluations."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megatron_sspo.evaluation.sets import sampling_of
from megatron_sspo.job.records import Records
from megatron_sspo.job.rollout_source import RolloutSource
from megatron_sspo.processes.console import Display
from megatron_sspo.processes.stop import Stop
from megatron_sspo.run import Run
from megatron_sspo.types import Prompt

if TYPE_CHECKING:
    from megatron_sspo.evaluation.evaluate import SetEvaluation
    from megatron_sspo.job.saved_rollouts import SavedRollouts


class WeightsLost(Exception):
    """Raised if the servers lost the evaluated weights, and the trainer no longer has them."""


class Evaluations:
    """The evaluations of a run, which servers may answer while the trainer goes on.

    Every rank calls `begin` and `finish` at the same places. No other weights may be loaded into the engine in between,
    so that all answers are of one policy.

    Args:
        source: the engine, and the rewards and environments of held-out sets.
        held_out: the prompts of each set, by its name.
        sync: collective that loads the policy's weights into the engine.
        records: the files of the run on rank 0; None on the other ranks.

    Attributes:
        in_progress: the update whose weights are being evaluated; None if no evaluation is in progress.
    """

    def __init__(
        self,
        run: Run,
        source: "RolloutSource | SavedRollouts",
        held_out: Mapping[str, Sequence[Prompt]],
        tokenizer: Any,
        *,
        sync: Callable[[], None],
        stop: Stop,
        display: Display,
        records: Records | None,
    ) -> None:
        self._run, self._source, self._held_out = run, source, held_out
        self._tokenizer, self._sync, self._stop, self._display = tokenizer, sync, stop, display
        self._records = records
        self.in_progress: int | None = None
        self._sets: dict[str, SetEvaluation] = {}  # those of the evaluation in progress
        self._rows = [*records.evaluations] if records is not None else []

    def has_row(self, update: int) -> bool:
        """Returns whether the newest row is of this update, with all sets and answers that the run has now.

        A run may be resumed with other sets or more answers. Only rank 0 has all rows of a resumed run.
        """
        row, evaluation = self._rows[-1] if self._rows else {}, self._run.evaluation
        if row.get("update") != update or evaluation is None:
            return False
        names = [f"{name}/reward" for name in evaluation.sets]
        if evaluation.samples:  # a reward without the part "answer" has neither of these numbers
            names += [f"{name}/avg@{evaluation.samples}" for name in evaluation.sets if f"{name}/pass@1" in row]
        return all(name in row for name in names)

    def begin(self, update: int, *, may_wait: bool = True) -> None:
        """Begins to evaluate the weights; servers with memory of their own answer while the trainer goes on.

        `update` is the one that made the weights. `may_wait` says whether to wait for the answers if the engine cannot
        give them while the trainer goes on.
        """
        evaluation, source = self._run.evaluation, self._source
        if evaluation is None or not isinstance(source, RolloutSource):
            return
        from megatron_sspo.evaluation.evaluate import AnswerStore, SetEvaluation

        self._sync()
        self.in_progress = update
        self._sets = {
            name: SetEvaluation(
                source.engine,
                source.parts.held_out[name][0],
                self._held_out[name],
                sampling_of(self._run, held_out),
                store=AnswerStore(self._tokenizer),
                samples=evaluation.samples,
                seed=self._run.seed,
                environment=source.parts.held_out[name][1],
            )
            for name, held_out in evaluation.sets.items()
        }
        for of_set in self._sets.values():
            of_set.begin()
        if self._records is not None:
            self._records.writer.hold()
        if may_wait and (source.engine.replicated or self._run.rollouts.takes_turns):
            self.finish(update)

    def finish(self, update: int, *, may_stop: bool = False) -> bool:
        """Waits for the evaluation in progress, if any, and writes its row; `update` made the weights of now.

        Returns False if a stop request ended it early, between two of its sets, as it may if `may_stop` is True.
        """
        if self.in_progress is None:
            return True
        assert isinstance(self._source, RolloutSource)  # as in `begin`
        title = "evaluation" if self.in_progress == update else f"evaluation of update {self.in_progress}"

        def send_again() -> None:
            if self.in_progress != update:
                raise WeightsLost
            self._sync()

        try:
            is_complete = self._finish_sets(self.in_progress, title, send_again, may_stop)
        except WeightsLost:
            self._display.log(f"{title} is left out: neither a server nor the trainer has its weights any more")
            is_complete = True
        for of_set in self._sets.values():
            of_set.cancel()
        self.in_progress, self._sets = None, {}
        self._source.engine.release_memory()
        if self._records is not None:
            self._records.writer.release()
        return is_complete

    def print_table(self) -> None:
        """Prints the first and the last row of each set side by side."""
        if not self._rows:
            return
        from megatron_sspo.evaluation.answers import before_and_after

        first, last = self._rows[0], self._rows[-1]
        columns = ["", f"update {first['update']:.0f}", f"update {last['update']:.0f}"]
        for name, prompts in self._held_out.items():
            title = f"{self._run.name}: {len(prompts)} held-out prompts of {name}"
            self._display.table(title, columns, before_and_after(first, last, name))

    def _finish_sets(self, update: int, title: str, send_again: Callable[[], None], may_stop: bool) -> bool:
        """Waits for the answers of each set. Returns False, and writes nothing, if a stop request ended it early."""
        from megatron_sspo.evaluation.answers import format_metrics

        row: dict[str, float] = {"update": update}
        answers: list[dict[str, Any]] = []
        for name, of_set in self._sets.items():
            if may_stop and self._stop.is_requested():
                return False
            numbers = of_set.compute_metrics(send_again)
            row |= {f"{name}/{number}": value for number, value in numbers.items()}
            answers += [{"set": name, **answer.to_row()} for answer in of_set.store.by_id("greedy").values()]
            self._display.log(f"{title}  {name}: {format_metrics(numbers)}")
        self._rows.append(row)
        if self._records is not None:
            self._records.write_evaluation(row, answers)
        return True
