"""`Job`: the resources that a run holds open, and the bookkeeping that the training loop leaves out."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from megatron_sspo.checkpoint.state import State
from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.data.open import prompt_stream
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.evaluation.sets import held_out_streams
from megatron_sspo.files.manifest import read_manifest
from megatron_sspo.job.evaluations import Evaluations
from megatron_sspo.job.memory_snapshot import snapshot_on_out_of_memory
from megatron_sspo.job.profile import Profiler
from megatron_sspo.job.prompts import report_prompts
from megatron_sspo.job.records import Records
from megatron_sspo.job.rollout_source import RolloutSource
from megatron_sspo.job.training import Training
from megatron_sspo.plots import lab
from megatron_sspo.policy.distributed import process_group
from megatron_sspo.policy.metrics import UpdateRecord, update_metrics
from megatron_sspo.policy.policy import Policy
from megatron_sspo.preflight.ranks import check_ranks, check_same_prompts
from megatron_sspo.preflight.resources import read_model_config
from megatron_sspo.preflight.unread import unread_settings
from megatron_sspo.processes import agree
from megatron_sspo.processes.console import LOG, Display, format_update, pluralize
from megatron_sspo.processes.stop import Stop
from megatron_sspo.processes.surroundings import order_kernels
from megatron_sspo.rollout.cycles import RolloutCycles
from megatron_sspo.rollout.metrics import reward_metrics
from megatron_sspo.rollout.servers.environment_variables import agree_on_nccl
from megatron_sspo.rollout.stopping import describe_end_of_turn
from megatron_sspo.run import Prompts, Run, WarmStart
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.run_folder.lock import RunLock
from megatron_sspo.run_folder.new import check_is_new
from megatron_sspo.run_folder.resuming import differences
from megatron_sspo.types import Batch

if TYPE_CHECKING:
    from megatron_sspo.job.saved_rollouts import SavedRollouts


class Job:
    """A context manager, entered on every rank: it starts or resumes a run, and at the end evaluates and exports.

    Only rank 0 writes the run's configuration, metrics and log.

    Args:
        run: the configuration, which `run.check` has checked.
        resume: the folder of an earlier attempt, to resume from its newest checkpoint; None starts a new run.
        profile: the successive updates to trace.
        rollouts: the folder of a run that has generated, whose rollouts take the place of an engine's; no evaluation is
            made then.

    Attributes:
        is_whole: whether the run ends with an evaluation and a model; else everything is only closed.
    """

    def __init__(self, run: Run, resume: Path | None, profile: range = range(0), rollouts: Path | None = None) -> None:
        self.run = run if rollouts is None else replace(run, evaluation=None)
        self.folder = resume or Path(run.output) / run.name
        self.is_whole = True
        self._is_new, self._saved_rollouts = resume is None, rollouts
        self.tokenizer = load_tokenizer(Path(run.model.path))
        self.prompts = self._prompt_stream(run.prompts)
        self._held_out = held_out_streams(self.run, self.tokenizer)
        self._sets = tuple(run.prompts.options["sets"]) if run.prompts.source == "mixture" else ()

        self.display = Display(silent=int(os.environ.get("RANK", 0)) != 0)
        self._seconds: dict[str, float] = {}
        self._profiled = profile
        self._records: Records | None = None  # on rank 0

    def __enter__(self) -> "Job":
        """Resumes from the newest checkpoint; without one, does the warm start and evaluates."""
        with ExitStack() as stack:  # closes everything already opened if the start fails
            self._open_ranks(stack)
            self._open_parts(stack)
            if self.training.resumed_from is not None:
                states = self.training.restore()
                self.prompts.restore(states["prompts"])
                self.cycles.restore(states["cycles"])
            self._open_records(stack)
            self._begin()
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None or not self.is_whole:  # after an error no collectives: other ranks may be inside others
            self._open.__exit__(kind, error, trace)
            return
        with self._open:
            self._stop_early() if self.stop.exit_code else self._finish()

    # ------------------------------------------------------------------ what the loop uses

    @property
    def policy(self) -> Policy:
        """The policy that is trained."""
        return self.training.policy

    @property
    def state(self) -> State:
        """The progress of the run."""
        return self.training.state

    @property
    def cycles(self) -> "RolloutCycles | SavedRollouts":
        """The rollouts, one cycle at a time."""
        return self._source.cycles

    def sync(self) -> None:
        """Loads the policy's weights into the engine, which has them already if it evaluates them. A collective."""
        if self._evaluations.in_progress is None:  # `after_update` has finished an evaluation of earlier weights
            self._load_weights()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to `seconds/<name>` of the next metrics row."""
        started = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def after_update(self, batch: Batch, record: UpdateRecord) -> None:
        """Writes the update's row of metrics, and evaluates and saves if that is due."""
        for line in self._profiler.after(self.state.update):
            self.display.log(line)
        version = self.state.update - 1  # the version of the weights before this optimizer step
        row = {
            "update": self.state.update,
            **reward_metrics(batch, policy_version=version, sets=self._sets),
            **(update_metrics(record) if self.is_main else {}),
            **{f"seconds/{name}": seconds for name, seconds in self._seconds.items()},
        }
        row |= self._source.metrics(row)
        self._seconds = {}
        if self._records is not None:
            self._folder_lock.check()
            self._records.write_update(row, batch, record)
        self.display.advance(f"reward {row['reward/mean']:.2f}")
        if self.is_main and not self.state.batches:
            self.display.log(format_update(row))
        self.training.checkpoints.poll()
        if not self.state.batches or self._is_evaluation_due():  # new weights are about to be loaded
            self._evaluations.finish(self.state.update)
        if self._is_evaluation_due():
            self._evaluations.begin(self.state.update)
        if self._is_due(self.run.checkpoint_every):
            self._save()
        self._profiler.before(self.state.update + 1)

    # ------------------------------------------------------------------ start

    def _open_ranks(self, stack: ExitStack) -> None:
        """Opens the process group, checks that the ranks agree, and locks the run's folder against other runs."""
        run = self.run
        order_kernels(tensor=run.parallel.tensor, context=run.parallel.context)
        agree_on_nccl(run.rollouts.engine, run.rollouts.options)
        self._device = stack.enter_context(process_group(run))
        self._model_config = read_model_config(run)
        check_ranks(run, self._model_config, self.folder)
        held_out = {f"evaluation.sets.{name}.prompts": stream for name, stream in self._held_out.items()}
        check_same_prompts({"prompts": self.prompts, **held_out})
        self.is_main = agree.is_main()
        stack.enter_context(snapshot_on_out_of_memory(self._device, self.folder, dist.get_rank()))
        self._profiler = Profiler(self._profiled, self.folder, dist.get_rank())
        stack.callback(self._profiler.close)
        agree.run_on_rank_0(lambda: self._lock(stack))

    def _lock(self, stack: ExitStack) -> None:
        """Locks the run's folder; a run that has begun and ended in it since the checks is not replaced."""
        self._folder_lock = stack.enter_context(RunLock(self.folder))
        if self._is_new:
            check_is_new(self.folder)

    def _open_parts(self, stack: ExitStack) -> None:
        """Opens the policy with its initial weights, the stop requests, and what makes the rollouts."""
        self.stop = Stop(self.folder)
        stack.callback(self.stop.close)
        self.training = Training(self.run, self.folder, self._device, on_saved=self._report_checkpoint)
        stack.callback(self.training.checkpoints.close)
        stack.callback(self.display.end)
        self._make_room()  # a server that starts measures how much memory is free
        self.training.open_teacher(stack)
        if self._saved_rollouts is None:
            self._source = RolloutSource(self.run, self.folder, self.prompts, stack, sync=self._load_weights)
        else:
            from megatron_sspo.job.saved_rollouts import SavedRollouts

            self._source = SavedRollouts(self.run, self._saved_rollouts)

    def _open_records(self, stack: ExitStack) -> None:
        """Opens the log and the records on rank 0, and on all ranks the evaluations, which write into them."""

        def open_on_rank_0() -> None:
            with os_errors_as_user_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                self.display.log_to(self.folder / LOG)
                if self.training.resumed_from is not None:
                    before = read_manifest(self.training.resumed_from).run
                    for line in differences(before, config_to_json(self.run)):
                        self.display.log(f"resumed with another configuration: {line}")
                elif rows := metrics_files.read(self.folder / metrics_files.METRICS):
                    dropped = pluralize(len(rows), "row")
                    self.display.log(f"no checkpoint: begins anew, {dropped} of metrics are dropped")
            update = self.state.update if self.training.resumed_from else None
            self._records = Records(self.run, self.folder, update=update, tokenizer=self.tokenizer)
            stack.callback(self._records.writer.close)

        agree.run_on_rank_0(open_on_rank_0)
        held_out = {name: stream.prompts for name, stream in self._held_out.items()}
        parts = {"stop": self.stop, "display": self.display, "records": self._records}
        sync = self._load_evaluated_weights
        self._evaluations = Evaluations(self.run, self._source, held_out, self.tokenizer, sync=sync, **parts)

    def _begin(self) -> None:
        """Logs the start, runs the warm start of a new run, and starts an evaluation if one is due."""
        run, is_resumed = self.run, self.training.resumed_from is not None
        self.display.log(
            f"{run.name}: {run.model.path}, {pluralize(run.parallel.num_processes, 'process', 'es')}, "
            f"into {self.folder}" + (f", resumed after update {self.state.update}" if is_resumed else "")
        )
        end_of_turn = describe_end_of_turn(Path(run.model.path), self.tokenizer)
        for line in filter(None, [self.policy.kernels, *unread_settings(run), end_of_turn]):
            self.display.log(line)
        report_prompts(self.display, self.folder, self.prompts, self._held_out)
        if not is_resumed:
            agree.run_on_rank_0(lambda: [*map(self.display.log, self._source.remarks(self.prompts.prompts))])
        if not is_resumed and run.warm_start is not None:
            self.state.is_warm_started = self._warm_start(run.warm_start)
            if self.state.is_warm_started and run.checkpoint_every:
                self._save()
            if self.stop.is_requested():
                return
        if not is_resumed or agree.run_on_rank_0(self._lacks_evaluation):
            self._evaluations.begin(self.state.update)
        self.display.begin(run.name, run.num_updates, self.state.update)
        self._profiler.before(self.state.update + 1)

    def _warm_start(self, options: WarmStart) -> bool:
        """Trains on demonstrations, then sets the optimizer of the updates. Returns False if a stop request came."""
        from megatron_sspo.job.warm_start import warm_start

        prompts = self._prompt_stream(options.prompts)
        check_same_prompts({"warm_start.prompts": prompts})
        for line in prompts.columns:
            if line not in self.prompts.columns:
                self.display.log(f"warm start: {line}")
        is_whole = warm_start(self.policy, options, prompts, self.tokenizer, self.stop, self.display)
        self.policy.set_optimizer(self.run.optimizer, self.run.num_updates)
        return is_whole

    # ------------------------------------------------------------------ end

    def _stop_early(self) -> None:
        """Saves a checkpoint of a run that stops early, unless it has not learned anything that could be saved."""
        self.display.end()
        if not self.training.is_saved and (self.state.update or self.state.is_warm_started):
            self._save()
        self.training.checkpoints.wait()
        self.display.log(
            f"stopped after update {self.state.update} of {self.run.num_updates}, because {self.stop.reason}: "
            f"continue with --resume {self.folder}"
        )

    def _finish(self) -> None:
        """Does the last evaluation, exports the model as a Hugging Face folder, plots the curves, prints the table.

        A checkpoint is saved first, because a stop request can interrupt the evaluation between two of its sets.
        """
        self.display.end()
        agree.run_on_rank_0(lambda: self._folder_lock.check())
        if not self.training.is_saved:
            self._save()
        self.training.checkpoints.wait()
        update = self.state.update
        if self._evaluations.in_progress is None and not agree.run_on_rank_0(lambda: self._evaluations.has_row(update)):
            self._evaluations.begin(update, may_wait=False)
        if not self._evaluations.finish(update, may_stop=True):
            self._stop_early()
            return
        model = self.training.export()
        if self.is_main:
            curves = lab.call("curves.plot_run", self.folder)
            self._evaluations.print_table()
            self.display.log(f"model: {model}   curves: {curves}   metrics: {self.folder / metrics_files.METRICS}")

    def _lacks_evaluation(self) -> bool:
        """Returns whether the run was interrupted after its newest checkpoint, before its weights were evaluated."""
        is_due = self._is_evaluation_due() or self.state.update == 0
        return self.state.update < self.run.num_updates and is_due and not self._evaluations.has_row(self.state.update)

    # ------------------------------------------------------------------ parts

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.state.update % every == 0

    def _is_evaluation_due(self) -> bool:
        return self._is_due(self.run.evaluation.every if self.run.evaluation else 0)

    def _make_room(self) -> None:
        """Releases the gradients for servers on the same GPUs; the next update takes them again."""
        if self.run.rollouts.takes_turns:
            self.policy.release_gradients()

    def _load_weights(self) -> None:
        self._make_room()
        self._source.load_weights(self.policy.weights(), self.state.update)

    def _load_evaluated_weights(self) -> None:
        with self.phase("sync"):
            self._load_weights()

    def _prompt_stream(self, prompts: Prompts) -> PromptStream:
        return prompt_stream(prompts, self.tokenizer, seed=self.run.seed, shuffle=True)

    def _save(self) -> None:
        """Saves a checkpoint, after an evaluation of earlier weights, which a resumed run could not begin again."""
        if self._evaluations.in_progress not in (None, self.state.update):
            self._evaluations.finish(self.state.update)
        self.training.save({"prompts": self.prompts.state(), "cycles": self.cycles.state()})

    def _report_checkpoint(self, update: int, waited: float, seconds: float) -> None:
        to_stop, in_background = self.stop.longest_interval + seconds, ""
        if self.run.checkpoint_in_background:
            in_background = f", {seconds - waited:.1f} s of it in the background"
            to_stop += seconds  # a stop waits for the checkpoint in progress, and then writes another
        of = f"update {update}" if update else "the warm start"
        self.display.log(
            f"checkpoint of {of} in {seconds:.1f} s{in_background}; a stop request takes at most {to_stop:.0f} s "
            "(from the longest update so far)"
        )
