"""`megatron-sspo launch RECIPE --rehearse`: rehearses a rank of each pipeline stage, each in a process of its own."""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import check_replaceable, write_atomically
from megatron_sspo.memory.estimate import host_memory
from megatron_sspo.processes.surroundings import ignore_upstream_warnings
from megatron_sspo.recipe import load_recipe
from megatron_sspo.run import Run
from sspo_rehearsal.account import Account
from sspo_rehearsal.batch import Workload, workload
from sspo_rehearsal.machines import MACHINES
from sspo_rehearsal.phases import phases
from sspo_rehearsal.prediction import predict, warnings
from sspo_rehearsal.report import ASSUMPTIONS, report
from sspo_rehearsal.sizes import find_config, num_experts


def rehearse(options: argparse.Namespace, run: Run) -> int:
    """Rehearses a run, prints the report, writes it as JSON. Raises UserError if the layout or an option is wrong."""
    if (on := MACHINES.get(options.machine)) is None:
        raise UserError(f"--machine is {options.machine!r}: name one of {', '.join(MACHINES)}")
    config, source = find_config(run.model.path)
    if options.skew != 1 and (not num_experts(config) or run.parallel.expert == 1):
        raise UserError(
            f"--skew is {options.skew:g}, and no other rank has experts to compare with: leave out --skew, or raise "
            "parallel.expert"
        )
    work = workload(
        run, prompt_tokens=options.prompt_tokens, response_tokens=options.response_tokens, at_most=options.microbatches
    )
    ranks = _ranks(options, run)
    path = options.output or Path(run.output) / f"{run.name}.rehearsal.json"
    check_replaceable(path)
    accounts = _rehearse_each(ranks, options, work)
    predicted = predict(run, accounts, work, on)
    of_phases, of_host = phases(run, accounts, config, on), host_memory(run, config)
    print(
        report(run, source, work, accounts, predicted, options.machine, on, of_phases=of_phases, of_host=of_host),
        flush=True,
    )
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
        "stages": [asdict(account) for account in accounts],
        "phases": [asdict(phase) for phase in of_phases],
        "host": asdict(of_host),
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


def _use_of_experts(skew: float) -> str:
    """Returns the assumption about experts, in words."""
    if skew == 1:
        return "Experts are used equally."
    return f"With a skew, the first expert rank's experts are chosen {skew:g} times as often as the others."


def _ranks(options: argparse.Namespace, run: Run) -> list[int]:
    """Returns the ranks to rehearse: the one that is asked for, or the first of one stage or of every stage."""
    parallel = run.parallel
    of_stage = parallel.num_processes // parallel.pipeline
    firsts = [stage * of_stage for stage in range(parallel.pipeline)]
    if options.rank is not None and not 0 <= options.rank < parallel.num_processes:
        raise UserError(f"--rank is {options.rank}, and the layout has ranks 0 to {parallel.num_processes - 1}")
    if options.stage is not None and not 1 <= options.stage <= parallel.pipeline:
        raise UserError(f"--stage is {options.stage}, and the layout has stages 1 to {parallel.pipeline}")
    if options.rank is not None:
        return [options.rank]
    return firsts if options.stage is None else [firsts[options.stage - 1]]


def _rehearse_each(ranks: Sequence[int], options: argparse.Namespace, work: Workload) -> list[Account]:
    """Rehearses ranks in interpreters of their own, as many at once as there are cores."""
    # on a machine with GPUs as well: the rehearsal has no values to compute
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    with ProcessPoolExecutor(
        min(len(ranks), len(os.sched_getaffinity(0))),
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=1,
    ) as pool:
        calls = [pool.submit(_rehearse_here, rank, options.recipe, options.set, options.skew, work) for rank in ranks]
        return [call.result() for call in calls]


def _rehearse_here(rank: int, recipe: str, assignments: Sequence[str], skew: float, work: Workload) -> Account:
    ignore_upstream_warnings()
    from sspo_rehearsal.rank import rehearse_rank
    from sspo_rehearsal.recorder import route_of

    run = load_recipe(recipe, assignments)
    config, _ = find_config(run.model.path)
    begun = time.monotonic()

    def say(part: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  rank {rank}: {part}", file=sys.stderr, flush=True)

    route = route_of(num_experts(config), expert_ranks=run.parallel.expert, skew=skew)
    return rehearse_rank(run, config, rank, work, route, say=say)
