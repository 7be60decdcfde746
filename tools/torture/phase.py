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

from tools.torture import books, leftovers
from tools.torture.faults import Kind, Moment
from tools.torture.hang import stacks
from tools.torture.life import BY_FILE, BY_SIGNAL, Life, Progress
from tools.torture.machine import Disk, Shim
from tools.torture.plan import Plan
from tools.torture.processes import Processes, send
from tools.torture.record import FaultRecord, PhaseRecord
from tools.torture.scene import NotNow, Scene
from tools.torture.servers import Servers

HANG_SECONDS = 120.0  # a run without output, update or end for so long hangs
_ASKED_SECONDS = 45.0  # a run that hangs has to end within this time after a stop signal
_FRUITLESS = 4  # after so many lives in a row without an update, a run counts as not recovered
_ENDING = 3  # in the last so many updates of a run, faults hit its end
_START_SECONDS = 14.0  # the approximate duration of a life's start


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
    now: tuple[str, int] = ("", 0)  # the kind of the phase, and the number of updates in the current life


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
        self._scene = Scene(
            kind, torture.random, disk.folder / "run", disk, torture.shim, torture.processes, progress, servers
        )
        self._scene.num_updates = num_updates
        self._activity: tuple[int, ...] = ()
        self._active = time.monotonic()
        self._life_began_at = 0  # the number of the journal's lines at the start of the life
        self._is_done = False

    def run(self, until: float) -> PhaseRecord:
        """Makes faults until the time `until`, lets the run finish, and audits it."""
        began = time.monotonic()
        shared = leftovers.shared_memory(())
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
        scene, torture = self._scene, self._torture
        choice = torture.plan.next(scene.phase, self._moments())
        if choice is None:  # no kind of fault fits now
            if scene.life is None:
                self._start()
            else:
                self._finish()
            return
        kind, moment = choice
        record = FaultRecord(
            number=len(torture.faults) + 1,
            kind=kind.name,
            phase=scene.phase,
            moment=moment,
            seconds_in=time.monotonic() - torture.began,
        )
        try:
            self._come_to(moment)
            if self._is_done:
                return
            record.what = kind.act(scene)
        except NotNow as reason:
            print(f"          {kind.name}: not now ({reason})", flush=True)
            torture.plan.tried[kind.name] -= 0.5
            record.kind = "none"
            self._recover(record, time.monotonic(), _NOTHING)
            if record.outcome != "went on" or record.tracebacks:
                torture.faults.append(record)
                self._tell(record)
            return
        except AssertionError as error:
            record.remarks.append(str(error))
        torture.faults.append(record)
        self._recover(record, time.monotonic(), kind)
        self._tell(record)

    def _moments(self) -> set[Moment]:
        left = self._scene.num_updates - self._scene.progress.update
        if self._scene.life is None:
            return {"starting"}
        if left <= _ENDING:
            return {"ending"}
        return {"working", "starting", "down"}

    def _come_to(self, moment: Moment) -> None:
        """Starts, kills or waits for the run until it is at that moment of its life."""
        scene = self._scene
        if moment in ("starting", "down"):
            if scene.life is not None:
                scene.life.kill()
                self._await_end(scene.life)
                scene.life = None
            if moment == "starting":
                self._start()
                scene.pause(0.0, _START_SECONDS)
        elif moment == "working":
            wanted = scene.progress.look() + scene.random.randint(1, 2)
            self._await(lambda: scene.progress.look() >= wanted)
            scene.pause(0.0, 0.8)
        else:
            self._await(lambda: scene.progress.update >= scene.num_updates)
            scene.pause(0.0, 2.0)
        if scene.life is not None and scene.life.exit_code() == 0:
            self._is_done = True

    def _await(self, condition: Callable[[], bool]) -> None:
        """Waits for the condition, the end of the life, or a hang; `_recover` handles a hang."""
        while not condition() and not self._hangs():
            if self._scene.life is None or self._scene.life.exit_code() is not None:
                return
            time.sleep(0.05)

    # ------------------------------------------------------------------ lives

    def _start(self) -> None:
        scene, torture = self._scene, self._torture
        self.record.lives += 1
        number = self.record.lives
        recipe = "embedded" if scene.phase == "embedded" else "served"
        settings = [f"output={scene.disk.folder}", f"num_updates={scene.num_updates}"]
        environment = run_environment(torture, self._folder)
        if scene.servers is not None:
            settings.append(f"rollouts.options.urls={json.dumps(scene.servers.urls)}")
            environment["MEGATRON_SSPO_SERVER_KEY"] = scene.servers.key
        if scene.phase == "router":
            settings.append("rollouts.options.router={}")
        arguments = ["train", f"tools/torture/recipe.py:{recipe}"]
        arguments += [part for setting in settings for part in ("--set", setting)]
        if (scene.run / "config.json").exists():
            arguments += ["--resume", str(scene.run)]
        output = self._folder / f"life-{number:03d}.out"
        scene.life = Life(number, arguments, environment, output, scene.meeting_port)
        scene.meeting_port = None
        self._life_began_at = scene.progress.look()
        self._active = time.monotonic()

    def _recover(self, record: FaultRecord, began: float, kind: Kind) -> None:
        """Resumes the run until it has made two more updates or is complete."""
        scene, fruitless = self._scene, 0
        num_before = len(scene.progress.lines)
        mark, has_ended = scene.progress.look(), False
        while True:
            life = scene.life
            if life is None:
                self._start()
                record.lives += 1
                mark, has_ended = scene.progress.look(), True
                continue
            if life.exit_code() is not None:
                if self._note_end(life, record):
                    break
                fruitless = 0 if scene.progress.look() > self._life_began_at else fruitless + 1
                if fruitless == _FRUITLESS:
                    record.outcome = "not recovered"
                    raise NotRecovered(f"{record.kind}: {fruitless} lives in a row without an update")
                continue
            if scene.progress.look() >= mark + 2 and (has_ended or not kind.ends):
                break
            if self._hangs():
                self._end_hang(record)
                continue
            self._mind()
            time.sleep(0.05)
        record.seconds = time.monotonic() - began
        recent = [update for _, update in scene.progress.lines[max(0, num_before - 1) :]]
        record.updates_lost = sum(max(0, first - second + 1) for first, second in pairwise(recent))
        if record.lives and record.outcome == "went on":
            record.outcome = "resumed"

    def _note_end(self, life: Life, record: FaultRecord) -> bool:
        """Records how a life has ended, follows its error message, and returns whether the run is complete."""
        scene = self._scene
        code = life.exit_code()
        assert code is not None
        record.exit_codes.append(code)
        text = life.text()
        record.tracebacks += "Traceback (most recent call last)" in text
        if (error := life.error()) and code not in (BY_SIGNAL, BY_FILE):
            record.sentences.append(error.replace(str(scene.run), "RUN"))
        self._check_processes(record.processes_left)
        if scene.listener is not None:
            scene.listener.close()
            scene.listener = None
        if code == 0:
            self._is_done = True
            return True
        if (damaged := life.damaged_checkpoint()) and damaged.exists():
            shutil.rmtree(damaged)
            record.remarks.append(f"deleted {damaged.name}, which the sentence names")
        scene.life = None
        return False

    def _check_processes(self, left: list[str]) -> None:
        """Records and kills the processes that a life has left behind."""
        found = leftovers.processes_left(self._torture.processes, leftovers.is_of_serve)
        left += found
        if found:
            send([p for p in self._torture.processes.alive() if not leftovers.is_of_serve(p)], signal.SIGKILL)

    def _await_end(self, life: Life) -> None:
        self._active = time.monotonic()
        while life.exit_code() is None and time.monotonic() - self._active < HANG_SECONDS:
            time.sleep(0.02)
        self._check_processes(self.record.processes_left)

    def _mind(self) -> None:
        scene = self._scene
        if scene.servers is not None:
            scene.servers.mind()
        self._torture.now = (scene.phase, scene.progress.look() - self._life_began_at)

    # ------------------------------------------------------------------ hangs

    def _hangs(self) -> bool:
        """Returns whether the run has given no output and made no update for `HANG_SECONDS`."""
        self._mind()
        scene = self._scene
        files = [scene.life.output if scene.life else None, scene.run / "log.txt", scene.run / "metrics.jsonl"]
        sizes = [path.stat().st_size if path and path.exists() else 0 for path in files]
        activity = (scene.progress.look(), *sizes)
        if activity != self._activity:
            self._activity, self._active = activity, time.monotonic()
        return time.monotonic() - self._active > HANG_SECONDS

    def _end_hang(self, record: FaultRecord) -> None:
        """Records the stack of every process, asks the run to end, and kills it if it does not."""
        life = self._scene.life
        assert life is not None
        record.outcome = "hang"
        processes = self._torture.processes.alive()
        path = self._folder / f"hang-{record.number}.txt"
        path.write_text(stacks(processes), encoding="utf-8")
        life.ask(signal.SIGTERM)
        deadline = time.monotonic() + _ASKED_SECONDS
        while life.exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        heard = life.exit_code() is not None
        record.remarks.append(f"HANG ({path}); {'ended' if heard else 'did not end'} when it was asked to")
        while life.exit_code() is None:
            life.kill()
            time.sleep(0.1)
        self._active = time.monotonic()

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        """Lets the run finish without a fault."""
        record = FaultRecord(0, "none", self._scene.phase, "", time.monotonic() - self._torture.began)
        if self._scene.life is None:
            self._start()
        while not self._is_done:
            self._recover(record, time.monotonic(), _NOTHING)
        if record.outcome == "hang" or record.lives:
            self._torture.faults.append(record)
            self._tell(record)

    def _audit(self, shared: set[str]) -> None:
        scene, torture, record = self._scene, self._torture, self.record
        is_served = scene.phase != "embedded"
        expected = torture.expected("served" if is_served else "embedded", scene.num_updates)
        journal = self._folder / "journal.jsonl"
        record.books = books.audit(journal, scene.run, expected, group_size=4, is_served=is_served)
        if not is_served and torture.reference is not None:
            record.differences = books.differences(scene.run, torture.reference)
        left = leftovers.listing(torture.tmp) | (leftovers.shared_memory(torture.processes.alive()) - shared)
        record.files_left = sorted(left) + leftovers.files_of_run(scene.run)
        for path in left:
            with suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def _end(self) -> None:
        scene = self._scene
        if scene.life is not None:
            scene.life.kill()
            self._await_end(scene.life)
        for name in ("log.txt", "metrics.jsonl", "evaluations.jsonl"):
            if (scene.run / name).exists():
                shutil.copy(scene.run / name, self._folder)
        if (scene.run / "servers").exists():
            shutil.copytree(scene.run / "servers", self._folder / "servers", dirs_exist_ok=True)
        scene.disk.close()

    def _tell(self, record: FaultRecord) -> None:
        passed = time.monotonic() - self._torture.began
        print(f"{passed:7.0f} s  {record.number:3d}  {record.line()}", flush=True)
        with (self._torture.output / "faults.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(record)) + "\n")


_NOTHING = Kind("none", lambda scene: "")


def run_environment(torture: Torture, folder: Path) -> dict[str, str]:
    """Returns the environment variables of a run's processes."""
    from tools.torture.life import ROOT
    from tools.torture.processes import TOKEN

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
