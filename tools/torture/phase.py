"""One run under faults: it is started, resumed after each fault as a user or Slurm would, and audited at its end."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from megatron_sspo.processes import stop
from tools.torture import books, leftovers
from tools.torture.faults import Kind, Moment
from tools.torture.hang import stacks
from tools.torture.life import ROOT, Attempt, Progress
from tools.torture.machine import Disk, Shim
from tools.torture.plan import Plan
from tools.torture.processes import TOKEN, Processes, send
from tools.torture.record import FaultRecord, PhaseRecord
from tools.torture.scene import FaultContext, NotNow
from tools.torture.servers import START_SECONDS, Servers

HANG_SECONDS = 120.0  # a run without output, update or end for so long hangs
_STOP_SECONDS = 45.0  # a run that hangs has to end within this time after a stop signal
_MAX_ATTEMPTS_WITHOUT_UPDATE = 4  # after so many attempts in a row without an update, a run counts as not recovered
_ENDING = 3  # in the last so many updates of a run, faults hit its end
_START_SECONDS = 14.0  # the approximate duration of an attempt's start
_NOTHING = Kind("none", lambda context: "")


class NotRecovered(Exception):
    """The run did not recover from a fault."""


@dataclass
class Torture:
    """The objects that all phases share."""

    output: Path
    folder: Path  # the model and the prompts
    token: str
    shim: Shim
    processes: Processes
    plan: Plan
    random: random.Random
    servers: Servers | None
    reference: Path | None  # the folder of the embedded run without faults
    expected: Callable[[str, int], Sequence[Sequence[str]]]  # (phase, updates) -> each update's prompts
    faults: list[FaultRecord]
    began: float
    tmp: Path
    now: tuple[str, int] = ("", 0)  # the kind of the phase, and the number of updates in the current attempt


class Phase:
    """A run of one kind: embedded; outside or router, with servers that outlive it; own, with its own servers."""

    def __init__(self, torture: Torture, number: int, kind: str, num_updates: int) -> None:
        self._torture = torture
        self.record = PhaseRecord(number=number, kind=kind, num_updates=num_updates)
        self._folder = torture.output / "phases" / f"{number:02d}-{kind}"
        self._folder.mkdir(parents=True)
        disk = Disk(torture.output / "disk" / f"{number:02d}")
        servers = torture.servers if kind in ("outside", "router") else None
        progress = Progress(self._folder / "journal.jsonl")
        self._context = FaultContext(
            kind, torture.random, disk.folder / "run", disk, torture.shim, torture.processes, progress, servers
        )
        self._context.num_updates = num_updates
        self._activity: tuple[int, ...] = ()
        self._active = time.monotonic()
        self._lines_at_attempt_start = 0  # the number of the journal's lines at the start of the attempt
        self._is_done = False

    def run(self, until: float) -> PhaseRecord:
        """Makes faults until the time `until`, lets the run finish, and audits it."""
        began = time.monotonic()
        shared = leftovers.shared_memory(list)
        try:
            while not self._is_done and time.monotonic() < until:
                self._fault()
            if not self._is_done:
                self._finish()
            self._audit(shared)
        except NotRecovered as error:
            self.record.error = str(error)
        finally:
            self._end()
            self.record.seconds = time.monotonic() - began
        return self.record

    # ------------------------------------------------------------------ faults

    def _fault(self) -> None:
        context, torture = self._context, self._torture
        choice = torture.plan.next(context.phase, self._moments())
        if choice is None:  # no kind of fault fits now
            if context.attempt is None:
                self._start()
            else:
                self._finish()
            return
        kind, moment = choice
        record = FaultRecord(
            number=len(torture.faults) + 1,
            kind=kind.name,
            phase=context.phase,
            moment=moment,
            seconds_in=time.monotonic() - torture.began,
        )
        try:
            self._bring_to_moment(moment)
            if self._is_done:
                return
            record.what = kind.act(context)
        except NotNow as reason:
            print(f"          {kind.name}: not now ({reason})", flush=True)
            torture.plan.tried[kind.name] -= 0.5
            record.kind = "none"
            self._recover(record, time.monotonic(), _NOTHING)
            if record.outcome != "went on" or record.tracebacks:
                torture.faults.append(record)
                self._print_record(record)
            return
        except AssertionError as error:
            record.remarks.append(str(error))
        torture.faults.append(record)
        self._recover(record, time.monotonic(), kind)
        self._print_record(record)

    def _moments(self) -> set[Moment]:
        left = self._context.num_updates - self._context.progress.update
        if self._context.attempt is None:
            return {"starting"}
        if left <= _ENDING:
            return {"ending"}
        return {"working", "starting", "down"}

    def _bring_to_moment(self, moment: Moment) -> None:
        """Starts, kills or waits for the run until it is at that moment of its attempt."""
        context = self._context
        if moment in ("starting", "down"):
            if context.attempt is not None:
                context.attempt.kill()
                self._await_end(context.attempt)
                context.attempt = None
            if moment == "starting":
                self._start()
                context.pause(0.0, _START_SECONDS)
        elif moment == "working":
            wanted = context.progress.read_new_lines() + context.random.randint(1, 2)
            self._await(lambda: context.progress.read_new_lines() >= wanted)
            context.pause(0.0, 0.8)
        else:
            self._await(lambda: context.progress.update >= context.num_updates)
            context.pause(0.0, 2.0)
        if context.attempt is not None and context.attempt.exit_code() == 0:
            self._is_done = True

    def _await(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition, the end of the attempt, or a hang; `_recover` handles a hang."""
        while not condition() and not self._is_hung():
            if self._context.attempt is None or self._context.attempt.exit_code() is not None:
                return
            time.sleep(0.05)

    # ------------------------------------------------------------------ attempts

    def _start(self) -> None:
        context, torture = self._context, self._torture
        self.record.attempts += 1
        number = self.record.attempts
        recipe = "embedded" if context.phase == "embedded" else "served"
        settings = [f"output={context.disk.folder}", f"num_updates={context.num_updates}"]
        environment = run_environment(torture, self._folder)
        if context.servers is not None:
            settings.append(f"rollouts.options.urls={json.dumps(context.servers.urls)}")
            environment["MEGATRON_SSPO_SERVER_KEY"] = context.servers.key
        if context.phase == "router":
            settings.append("rollouts.options.router={}")
        arguments = ["train", f"tools/torture/recipe.py:{recipe}"]
        arguments += [part for setting in settings for part in ("--set", setting)]
        if (context.run / "config.json").exists():
            arguments += ["--resume", str(context.run)]
        output = self._folder / f"attempt-{number:03d}.out"
        context.attempt = Attempt(number, arguments, environment, output, context.rendezvous_port)
        context.rendezvous_port = None
        self._lines_at_attempt_start = context.progress.read_new_lines()
        self._active = time.monotonic()

    def _recover(self, record: FaultRecord, began: float, kind: Kind) -> None:
        """Resumes the run until it has made two more updates or is complete."""
        context, fruitless = self._context, 0
        num_before = len(context.progress.lines)
        mark, has_ended = context.progress.read_new_lines(), False
        while True:
            attempt = context.attempt
            if attempt is None:
                self._start()
                record.attempts += 1
                mark, has_ended = context.progress.read_new_lines(), True
                continue
            if attempt.exit_code() is not None:
                if self._record_end(attempt, record):
                    break
                fruitless = 0 if context.progress.read_new_lines() > self._lines_at_attempt_start else fruitless + 1
                if fruitless == _MAX_ATTEMPTS_WITHOUT_UPDATE:
                    record.outcome = "not recovered"
                    raise NotRecovered(f"{record.kind}: {fruitless} attempts in a row without an update")
                continue
            if context.progress.read_new_lines() >= mark + 2 and (has_ended or not kind.ends):
                break
            if self._is_hung():
                self._end_hang(record)
                continue
            self._ensure_servers_running()
            time.sleep(0.05)
        record.seconds = time.monotonic() - began
        recent = [update for _, update in context.progress.lines[max(0, num_before - 1) :]]
        record.updates_lost = sum(max(0, first - second + 1) for first, second in pairwise(recent))
        if record.attempts and record.outcome == "went on":
            record.outcome = "resumed"

    def _record_end(self, attempt: Attempt, record: FaultRecord) -> bool:
        """Records how an attempt has ended, follows its error message, and returns whether the run is complete."""
        context = self._context
        code = attempt.exit_code()
        assert code is not None
        record.exit_codes.append(code)
        text = attempt.text()
        record.tracebacks += "Traceback (most recent call last)" in text
        error = attempt.error()
        if error and code not in stop.EXIT_CODES:
            record.sentences.append(error.replace(str(context.run), "RUN"))
        self._check_processes(record.processes_left)
        if context.listener is not None:
            context.listener.close()
            context.listener = None
        if code == 0:
            self._is_done = True
            return True
        if (damaged := attempt.damaged_checkpoint()) and damaged.exists():
            shutil.rmtree(damaged)
            record.remarks.append(f"deleted {damaged.name}, which the sentence names")
        if context.servers is not None and "does not answer" in error:
            context.servers.await_answers(START_SECONDS)
            record.remarks.append("waited for the server, which the sentence names")
        context.attempt = None
        return False

    def _check_processes(self, left: list[str]) -> None:
        """Records and kills the processes that an attempt has left behind."""
        found = leftovers.processes_left(self._torture.processes, leftovers.is_of_serve)
        left += found
        if found:
            send([p for p in self._torture.processes.alive() if not leftovers.is_of_serve(p)], signal.SIGKILL)

    def _await_end(self, attempt: Attempt) -> None:
        self._active = time.monotonic()
        while attempt.exit_code() is None and time.monotonic() - self._active < HANG_SECONDS:
            time.sleep(0.02)
        self._check_processes(self.record.processes_left)

    def _ensure_servers_running(self) -> None:
        context = self._context
        if context.servers is not None:
            context.servers.ensure_running()
        self._torture.now = (context.phase, context.progress.read_new_lines() - self._lines_at_attempt_start)

    # ------------------------------------------------------------------ hangs

    def _is_hung(self) -> bool:
        """Returns whether the run has given no output and made no update for `HANG_SECONDS`."""
        self._ensure_servers_running()
        context = self._context
        files = [
            context.attempt.output if context.attempt else None,
            context.run / "log.txt",
            context.run / "metrics.jsonl",
        ]
        sizes = [path.stat().st_size if path and path.exists() else 0 for path in files]
        activity = (context.progress.read_new_lines(), *sizes)
        if activity != self._activity:
            self._activity, self._active = activity, time.monotonic()
        return time.monotonic() - self._active > HANG_SECONDS

    def _end_hang(self, record: FaultRecord) -> None:
        """Records the stack of every process, asks the run to end, and kills it if it does not."""
        attempt = self._context.attempt
        assert attempt is not None
        record.outcome = "hang"
        processes = self._torture.processes.alive()
        path = self._folder / f"hang-{record.number}.txt"
        path.write_text(stacks(processes), encoding="utf-8")
        attempt.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while attempt.exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        has_ended = attempt.exit_code() is not None
        record.remarks.append(f"HANG ({path}); {'ended' if has_ended else 'did not end'} when it was asked to")
        while attempt.exit_code() is None:
            attempt.kill()
            time.sleep(0.1)
        self._active = time.monotonic()

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        """Lets the run finish without a fault."""
        record = FaultRecord(0, "none", self._context.phase, "", time.monotonic() - self._torture.began)
        if self._context.attempt is None:
            self._start()
        while not self._is_done:
            self._recover(record, time.monotonic(), _NOTHING)
        if record.outcome == "hang" or record.attempts:
            self._torture.faults.append(record)
            self._print_record(record)

    def _audit(self, shared: set[str]) -> None:
        context, torture, record = self._context, self._torture, self.record
        is_served = context.phase != "embedded"
        expected = torture.expected("served" if is_served else "embedded", context.num_updates)
        journal = self._folder / "journal.jsonl"
        record.audit = books.audit(journal, context.run, expected, group_size=4, is_served=is_served)
        if not is_served and torture.reference is not None:
            record.differences = books.differences(context.run, torture.reference)
        left = leftovers.listing(torture.tmp) | (leftovers.shared_memory(torture.processes.alive) - shared)
        record.files_left = sorted(left) + leftovers.files_of_run(context.run)
        for path in left:
            with suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def _end(self) -> None:
        context = self._context
        if context.attempt is not None:
            context.attempt.kill()
            self._await_end(context.attempt)
        for name in ("log.txt", "metrics.jsonl", "evaluations.jsonl"):
            if (context.run / name).exists():
                shutil.copy(context.run / name, self._folder)
        if (context.run / "servers").exists():
            shutil.copytree(context.run / "servers", self._folder / "servers", dirs_exist_ok=True)
        context.disk.close()

    def _print_record(self, record: FaultRecord) -> None:
        passed = time.monotonic() - self._torture.began
        print(f"{passed:7.0f} s  {record.number:3d}  {record.line()}", flush=True)
        with (self._torture.output / "faults.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(record)) + "\n")


def run_environment(torture: Torture, folder: Path) -> dict[str, str]:
    """Returns the environment variables of a run's processes."""
    return {
        TOKEN: torture.token,
        "TORTURE_FOLDER": str(torture.folder),
        "TORTURE_JOURNAL": str(folder / "journal.jsonl"),
        "TMPDIR": str(torture.tmp),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **torture.shim.environment(),
    }
