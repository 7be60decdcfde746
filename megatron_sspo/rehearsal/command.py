"""`megatron-sspo launch RECIPE --rehearse`: rehearses a rank of each pipeline stage, each in a process of its own."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.files.writing import check_replaceable, write_atomically
from megatron_sspo.processes.cores import num_cores
from megatron_sspo.processes.forks import Fork, fork, may_fork
from megatron_sspo.processes.output import ignore_upstream_warnings
from megatron_sspo.processes.parent import exit_with_parent
from megatron_sspo.processes.scratch import ScratchFolder
from megatron_sspo.rehearsal.account import Account
from megatron_sspo.rehearsal.batch import Workload, workload
from megatron_sspo.rehearsal.machines import machine
from megatron_sspo.rehearsal.prediction import predict, warnings
from megatron_sspo.rehearsal.report import ASSUMPTIONS, report
from megatron_sspo.rehearsal.sizes import find_config, num_experts
from megatron_sspo.run import Run


def _check_lengths(options: argparse.Namespace, run: Run) -> None:
    """Raises UserError if an option asks for longer prompts or responses than the run has."""
    limits = {
        "prompt_tokens": (run.prompts.max_tokens, "prompts.max_tokens"),
        "response_tokens": (run.rollouts.sampling.max_tokens, "rollouts.sampling.max_tokens"),
    }
    for name, (most, field) in limits.items():
        if (tokens := getattr(options, name)) > most:
            raise UserError(
                f"--{name.replace('_', '-')} is {tokens}, and {field} {most}: the run has no longer ones; to rehearse "
                f"them, set {field}, too"
            )


def _check_skew(options: argparse.Namespace, run: Run, experts: int) -> None:
    """Raises UserError if a skew has no experts on other ranks to compare with."""
    if options.skew != 1 and not experts:
        raise UserError(f"--skew is {options.skew:g}, but {run.model.path} has no experts: leave out --skew")
    if options.skew != 1 and run.parallel.expert == 1:
        raise UserError(
            f"--skew is {options.skew:g}, but with parallel.expert=1 all experts are on one rank: leave out --skew, or "
            "raise parallel.expert"
        )


def _use_of_experts(skew: float) -> str:
    """Returns the assumption about experts, in words."""
    if skew == 1:
        return "Experts are used equally."
    return f"With a skew, the first expert rank's experts are chosen {skew:g} times as often as the others."


def rehearse(options: argparse.Namespace, run: Run) -> int:
    """Rehearses a run, prints the report, and writes it as JSON.

    Raises:
        UserError: the layout or an option is wrong, or a rehearsal failed.
        OSError: the JSON cannot be written.
    """
    on = machine(options.machine)
    _check_lengths(options, run)
    config, source = find_config(run.model.path)
    _check_skew(options, run, num_experts(config))
    work = workload(
        run, prompt_tokens=options.prompt_tokens, response_tokens=options.response_tokens, at_most=options.microbatches
    )
    if options.account:  # one of the processes that are started below
        return _rehearse_here(options, run, work)
    ranks = _ranks(options, run)
    path = options.output or Path(run.output) / f"{run.name}.rehearsal.json"
    check_replaceable(path)
    accounts = _rehearse_each(ranks, options, run, work)
    predicted = predict(run, accounts, work, on)
    print(report(run, source, work, accounts, predicted, options.machine, on), flush=True)
    found = warnings(run, accounts, work, predicted, on)
    for line in found:
        print(f"warning: {line}")
    print(ASSUMPTIONS, *([_use_of_experts(options.skew)] if num_experts(config) else []))
    values = {
        "name": run.name,
        "model": source,
        "parallel": asdict(run.parallel),
        "workload": asdict(work),
        "skew": options.skew,
        "stages": [account.to_json() for account in accounts],
        "machine": options.machine,
        "prediction": {
            **predicted.terms,
            "update": predicted.update,
            "old_log_probs": predicted.old_log_probs,
            "gather": predicted.gather,
            "tokens_per_second_and_gpu": predicted.tokens_per_second,
            "model_flops_utilisation": predicted.utilisation,
        },
        "warnings": found,
    }
    write_atomically(path, json.dumps(values, indent=1))
    print(path)
    return 0


def _ranks(options: argparse.Namespace, run: Run) -> list[int]:
    """Returns the ranks to rehearse: the one that is asked for, or the first of one stage or of every stage."""
    parallel = run.parallel
    of_stage = parallel.num_processes // parallel.pipeline
    if options.rank is not None:
        if not 0 <= options.rank < parallel.num_processes:
            raise UserError(f"--rank is {options.rank}, and the layout has ranks 0 to {parallel.num_processes - 1}")
        return [options.rank]
    if options.stage is not None:
        if not 1 <= options.stage <= parallel.pipeline:
            raise UserError(f"--stage is {options.stage}, and the layout has stages 1 to {parallel.pipeline}")
        return [(options.stage - 1) * of_stage]
    return [stage * of_stage for stage in range(parallel.pipeline)]


def _rehearse_each(ranks: Sequence[int], options: argparse.Namespace, run: Run, work: Workload) -> list[Account]:
    """Rehearses ranks in processes of their own, as many at once as there are cores."""
    begun, command = time.monotonic(), os.getpid()
    at_once = num_cores()
    scratch = ScratchFolder("megatron-sspo-rehearsal-")
    waiting = [(rank, scratch.path / f"{rank}.json") for rank in ranks]
    running: list[tuple[int, Path, subprocess.Popen[bytes] | Fork]] = []
    done: dict[int, Account] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                rank, path = waiting.pop(0)
                running.append((rank, path, _start(rank, path, options, run, work)))
            time.sleep(0.1)
            for entry in [entry for entry in running if entry[2].poll() is not None]:
                running.remove(entry)
                rank, path, process = entry
                if process.poll():
                    raise UserError(f"the rehearsal of rank {rank} failed: see its messages above")
                done[rank] = Account.from_json(read_json(path))
                print(f"{time.monotonic() - begun:7.1f} s  rank {rank} is rehearsed", file=sys.stderr, flush=True)
    finally:
        if os.getpid() == command:  # a fork leaves this block, too
            for _, _, process in running:
                process.kill()
                process.wait()
            scratch.close()
    return [done[rank] for rank in ranks]


def _start(
    rank: int, path: Path, options: argparse.Namespace, run: Run, work: Workload
) -> "subprocess.Popen[bytes] | Fork":
    """Starts the rehearsal of a rank: in a fork, which need not import Megatron, or in an interpreter of its own."""
    if may_fork():
        _import_rank()
        given = argparse.Namespace(**{**vars(options), "rank": rank, "account": path})
        return fork(partial(_rehearse_here, given, run, work), f"rank {rank}")
    assignments = [part for value in options.set for part in ("--set", value)]
    command = [sys.executable, "-m", "megatron_sspo", "launch", options.recipe, *assignments, "--rehearse"]
    command += ["--rank", str(rank), "--skew", str(options.skew), "--machine", options.machine]
    command += ["--prompt-tokens", str(options.prompt_tokens), "--response-tokens", str(options.response_tokens)]
    command += ["--microbatches", str(options.microbatches), "--account", str(path)]
    # on a machine with GPUs as well: the rehearsal has no values to compute
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, preexec_fn=partial(exit_with_parent, os.getpid()))


def _import_rank() -> None:
    ignore_upstream_warnings()
    import megatron_sspo.rehearsal.rank  # noqa: F401


def _rehearse_here(options: argparse.Namespace, run: Run, work: Workload) -> int:
    _import_rank()
    from megatron_sspo.rehearsal.rank import rehearse_rank
    from megatron_sspo.rehearsal.recorder import route_of

    config, _ = find_config(run.model.path)
    begun = time.monotonic()

    def say(part: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  rank {options.rank}: {part}", file=sys.stderr, flush=True)

    route = route_of(num_experts(config), expert_ranks=run.parallel.expert, skew=options.skew)
    account = rehearse_rank(run, config, options.rank, work, route, say=say)
    write_atomically(options.account, json.dumps(account.to_json()))
    return 0
