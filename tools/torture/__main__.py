"""`python -m tools.torture`: runs the real loop under a seeded sequence of faults, and prints a table at the end."""

import argparse
import os
import random
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.torture import machine, scenario
from tools.torture.hang import stacks
from tools.torture.leftovers import is_of_serve
from tools.torture.life import ROOT, Attempt
from tools.torture.memory import Recorder
from tools.torture.phase import HANG_SECONDS, Phase, Torture, run_environment
from tools.torture.plan import Plan
from tools.torture.processes import Processes, send
from tools.torture.record import FaultRecord, PhaseRecord
from tools.torture.report import Findings
from tools.torture.servers import START_SECONDS, Servers

_SHORT = 400.0  # with fewer seconds, there is time for two runs only
_UPDATES = {"embedded": 40, "outside": 40, "router": 30, "own": 20}
_UPDATES_OF_SHORT = {"embedded": 16, "outside": 16}
_ORDER = ("embedded", "outside", "embedded", "router", "own")
_ATTEMPTS = 3  # attempts at the run without faults


def main() -> int:
    """Runs the command line; returns 1 if a run hung, lost or doubled data, or left files or processes behind."""
    parser = argparse.ArgumentParser(prog="python -m tools.torture")
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "torture", help="folder; it is replaced")
    parser.add_argument("--phases", default="", help="embedded,outside,own,router: these runs, again and again")
    parser.add_argument("--only", default="", help="a regular expression for the kinds of faults, such as disk|corrupt")
    options = parser.parse_args()
    output = options.output.resolve()
    machine.enter_namespace(output)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    machine.private_folders(output)
    machine.become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything started is ended
    torture = _prepare(options, output)
    recorder = Recorder(torture.processes, output / "memory.jsonl", lambda: torture.now)
    phases: list[PhaseRecord] = []
    try:
        kinds = list(_kinds(options))
        if _is_short(options) and "outside" in kinds and torture.servers is not None:
            torture.servers.ensure_running()  # the servers start while the first run trains
        if "embedded" in kinds:
            torture.reference = _reference(torture, _updates(options, "embedded"))
        began = time.monotonic()
        until = began + options.seconds
        while time.monotonic() < until:
            for kind in kinds:
                if time.monotonic() >= until and phases:
                    break
                share = began + 0.5 * options.seconds if _is_short(options) and len(kinds) > 1 and not phases else until
                phases.append(_phase(torture, len(phases) + 1, kind, _updates(options, kind), share))
    finally:
        recorder.close()
        if torture.servers is not None:
            torture.servers.close()
        torture.processes.end_all()
        command = f"make torture SECONDS={options.seconds:.0f} SEED={options.seed}"
        seconds = time.monotonic() - torture.began
        findings = Findings(command, seconds, torture.faults, phases, recorder.samples, torture.plan.not_run)
        path = findings.write(output)
        print(f"\n{findings.markdown()}\n{path}", flush=True)
    return 1 if findings.failures() else 0


def _prepare(options: argparse.Namespace, output: Path) -> Torture:
    folder, tmp = output / "files", output / "tmp"
    scenario.write(folder)
    tmp.mkdir()
    shim = machine.Shim(output)
    abilities = ["mount"] * machine.may_mount() + ["shim"] * shim.works
    token = secrets.token_hex(8)
    processes = Processes(token, tmp)
    torture = Torture(
        output=output,
        folder=folder,
        token=token,
        shim=shim,
        processes=processes,
        plan=Plan(options.seed, abilities, options.only),
        random=random.Random(options.seed),
        servers=None,
        reference=None,
        expected=lambda phase, updates: expected_prompts(folder, phase, updates),
        faults=[],
        began=time.monotonic(),
        tmp=tmp,
    )
    place = output / "servers-tmp"
    place.mkdir()
    environment = {**run_environment(torture, output), "TMPDIR": str(place)}
    torture.servers = Servers(output / "servers", environment)
    return torture


def _is_short(options: argparse.Namespace) -> bool:
    return options.seconds < _SHORT


def _kinds(options: argparse.Namespace) -> Iterator[str]:
    if options.phases:
        yield from options.phases.split(",")
    elif _is_short(options):
        yield from ("embedded", "outside")
    else:
        first = options.seed % len(_ORDER)
        yield from (*_ORDER[first:], *_ORDER[:first])


def _updates(options: argparse.Namespace, kind: str) -> int:
    return (_UPDATES_OF_SHORT if _is_short(options) else _UPDATES).get(kind, _UPDATES[kind])


def _phase(torture: Torture, number: int, kind: str, num_updates: int, until: float) -> PhaseRecord:
    if kind in ("outside", "router"):
        assert torture.servers is not None
        if not torture.servers.await_ready(START_SECONDS):
            raise SystemExit(f"the servers do not answer: see {torture.servers.folder}")
    record = Phase(torture, number, kind, num_updates).run(until)
    seconds = time.monotonic() - torture.began
    print(f"{seconds:7.0f} s  run {number} ({kind}) has ended: {_summarize(record)}", flush=True)
    return record


def _summarize(record: PhaseRecord) -> str:
    if record.audit is None:
        return f"NOT COMPLETE: {record.error}"
    found = [*record.audit.errors, *record.differences, *(f"left: {path}" for path in record.files_left)]
    return f"{record.attempts} attempts, {record.audit.updates_lost} updates made again; " + (
        "; ".join(found) or "balanced"
    )


def _reference(torture: Torture, num_updates: int) -> Path:
    """Makes the embedded run without faults and returns its folder. A hang is recorded, and the run is repeated."""
    for number in range(_ATTEMPTS):
        folder = torture.output / "reference" / str(number)
        folder.mkdir(parents=True)
        settings = ["--set", f"output={folder}", "--set", f"num_updates={num_updates}"]
        arguments = ["train", "tools/torture/recipe.py:embedded", *settings]
        attempt = Attempt(0, arguments, run_environment(torture, folder), folder / "out")
        if _finishes(attempt, torture, folder):
            print(f"{time.monotonic() - torture.began:7.0f} s  the run without faults has ended", flush=True)
            return folder / "run"
        if (code := attempt.exit_code()) and code > 0:
            raise SystemExit(f"the run without faults failed: {attempt.text()}")
    raise SystemExit(f"the run without faults hung {_ATTEMPTS} times: see {torture.output / 'reference'}")


def _finishes(attempt: Attempt, torture: Torture, folder: Path) -> bool:
    size, last_output = 0, time.monotonic()
    while (code := attempt.exit_code()) is None:
        if (now := attempt.output.stat().st_size) != size:
            size, last_output = now, time.monotonic()
        if time.monotonic() - last_output > HANG_SECONDS:
            is_run = [p for p in torture.processes.alive() if not is_of_serve(p)]
            (folder / "hang.txt").write_text(stacks(is_run), encoding="utf-8")
            send(is_run, signal.SIGKILL)
            record = FaultRecord(0, "none", "embedded", "", time.monotonic() - torture.began, outcome="hang")
            record.what = f"without any fault: see {folder / 'hang.txt'}"
            torture.faults.append(record)
            print(f"{record.seconds_in:7.0f} s  {record.line()}", flush=True)
            attempt.await_end()
            return False
        time.sleep(0.1)
    return code == 0


def expected_prompts(folder: Path, recipe: str, num_updates: int) -> Sequence[Sequence[str]]:
    """Returns the prompts that each update must train on: those of the stream, in its order, without gaps."""
    os.environ["TORTURE_FOLDER"] = str(folder)
    from megatron_sspo.data.open import prompt_stream
    from megatron_sspo.data.tokenizer import load_tokenizer
    from megatron_sspo.recipe import load_recipe

    run = load_recipe(f"{ROOT}/tools/torture/recipe.py:{recipe}", [])
    stream = prompt_stream(run.prompts, load_tokenizer(Path(run.model.path)), seed=run.seed, shuffle=True)
    found: list[Sequence[str]] = []
    while len(found) < num_updates:
        cycle = [prompt.id for prompt in stream.take(run.rollouts.prompts_per_update * run.updates_per_sync)]
        found += [cycle[number :: run.updates_per_sync] for number in range(run.updates_per_sync)]
    return found[:num_updates]


if __name__ == "__main__":
    sys.exit(main())
