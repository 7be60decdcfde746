"""The text of a rehearsal: memory by category, messages, FLOPs and the predicted time, one column a pipeline stage."""

from collections import Counter
from collections.abc import Sequence

from megatron_sspo.memory.estimate import HostMemory
from megatron_sspo.run import Run
from sspo_rehearsal.account import Account
from sspo_rehearsal.batch import Workload
from sspo_rehearsal.machines import BANDWIDTH_UTILIZATION, FLOPS_UTILIZATION, Machine
from sspo_rehearsal.phases import Phase
from sspo_rehearsal.prediction import Prediction

_PEAKS = {
    "old_log_probs": "log π_old",
    "update": "forward and backward",
    "step": "optimizer step",
    "gather": "gathering weights",
}
_PHASES = {
    "old_log_probs": "log π_old",
    "forward": "forward",
    "backward": "backward",
    "reduce": "gradients",
    "step": "step",
    "gather": "weights",
}


def report(
    run: Run,
    source: str,
    work: Workload,
    accounts: Sequence[Account],
    predicted: Prediction,
    name: str,
    on: Machine,
    *,
    of_phases: Sequence[Phase],
    of_host: HostMemory,
) -> str:
    """Returns the report's text.

    Args:
        source: where the model's sizes are from.
        accounts: of a rank of each pipeline stage that was rehearsed.
        name: the machine's name.
        of_phases: the memory of a GPU in each phase of a cycle.
        of_host: what is estimated of a rank in the host's memory.
    """
    ranks = min(on.gpus, run.parallel.num_processes)
    lines = [
        f"{run.name}: {run.parallel.num_processes} ranks ({run.parallel.describe()}), {source}",
        f"{work.sequences} sequences an update of {work.prompt_tokens} + {work.response_tokens} tokens, in "
        f"{work.microbatches} microbatches a rank of at most {work.per_microbatch} sequences; {work.rehearsed} of them "
        "were rehearsed",
        "",
        *_memory(accounts),
        "",
        *_phases(of_phases),
        f"{of_host.describe(ranks)}; a node has {on.host.memory / 1e9:.0f} GB",
        "",
        *_messages(accounts, work),
        *_senders(accounts[0]),
        "",
        *_flops(accounts, work),
        "",
        *_time(predicted, name, on),
        f"rehearsed in {max(sum(account.seconds.values()) for account in accounts):.0f} s and "
        f"{max(account.process_memory for account in accounts) / 1e9:.1f} GB of memory a stage",
    ]
    return "\n".join(lines)


ASSUMPTIONS = (
    "Layers are Megatron's local ones, experts are computed one after the other, and log-probs have the model's dtype: "
    "Transformer Engine's layers, CUDA's allocator and NCCL's buffers are not rehearsed. All ranks are taken to have "
    "this rank's numbers of tokens. Messages are not overlapped with computation. Routing replay and the reference "
    "pass of a KL penalty are left out, and prompts are not shared."
)


def _memory(accounts: Sequence[Account]) -> list[str]:
    rows: list[list[str]] = [["memory, GB", *_stages(accounts)]]
    for category in sorted({name for account in accounts for name in account.resident}):
        rows.append([category, *(_gb(account.resident.get(category, 0)) for account in accounts)])
    rows.append(["between updates", *(_gb(sum(account.resident.values())) for account in accounts)])
    for part, words in _PEAKS.items():
        if any(part in account.peaks for account in accounts):
            sums = [sum(account.peaks.get(part, {}).values()) for account in accounts]
            rows.append([f"peak: {words}", *map(_gb, sums)])
    held = [account.peaks["checkpoint"].get("checkpoint", 0) for account in accounts]
    rows.append(["a checkpoint: on the host, at most", *map(_gb, held)])
    rows.append(["a checkpoint: written by this rank", *(_gb(account.written) for account in accounts)])
    update = [account.peaks["update"] for account in accounts]
    for category in ("activations", "head"):
        rows.append([f"  of forward and backward: {category}", *(_gb(peak.get(category, 0)) for peak in update)])
    return table(rows)


def _phases(found: Sequence[Phase]) -> list[str]:
    """Lists what a GPU holds in each phase of a cycle; the trainer's with the allowance for CUDA and NCCL."""
    turns = any(phase.server for phase in found)
    rows = [["phases of a cycle, GB a GPU", "trainer", *(["server", "sum"] if turns else [])]]
    for phase in found:
        server = [_gb(phase.server), _gb(phase.trainer + phase.server)] if turns else []
        rows.append([phase.name, _gb(phase.trainer), *server])
    return table(rows)


def _messages(accounts: Sequence[Account], work: Workload) -> list[str]:
    """Lists the collectives of an update, for all of its microbatches."""
    rows: list[list[str]] = [
        ["messages of a rank in an update", "group", "calls", *(f"GB, {s}" for s in _stages(accounts))]
    ]
    calls: Counter[tuple[str, str, str, int]] = Counter()
    sizes: list[Counter[tuple[str, str, str, int]]] = [Counter() for _ in accounts]
    for number, account in enumerate(accounts):
        for row in account.collectives:
            if row.phase not in _PHASES:
                continue
            times = work.factor if row.phase in ("old_log_probs", "forward", "backward") else 1
            key = (_PHASES[row.phase], row.kind, _group(row.group), len(row.ranks))
            sizes[number][key] += round(row.bytes * times)
            calls[key] = max(calls[key], round(row.calls * times))
    for key in sorted(calls, key=lambda key: (list(_PHASES.values()).index(key[0]), key)):
        if max(size[key] for size in sizes) >= 1e6:
            phase, kind, group, ranks = key
            columns = [_gb(size[key]) for size in sizes]
            rows.append([f"{phase}: {kind}", f"{group} of {ranks}", str(calls[key]), *columns])
    return table(rows)


def _flops(accounts: Sequence[Account], work: Workload) -> list[str]:
    """Lists the FLOPs of matrix products and attention in an update, for all of its microbatches."""
    rows: list[list[str]] = [["matrix products in an update, TFLOP", *_stages(accounts)]]
    for phase in ("old_log_probs", "forward", "backward"):
        if any(phase in account.flops for account in accounts):
            counts = [account.flops.get(phase, 0) * work.factor for account in accounts]
            rows.append([_PHASES[phase], *(f"{count / 1e12:,.1f}" for count in counts)])
    return table(rows)


def _senders(account: Account) -> list[str]:
    """Returns the line about the ranks that send weights to the servers, and whether one sends more than its share."""
    if not account.sent_to_servers:
        return []
    largest, most = max(account.sent_to_servers, key=lambda pair: pair[1])
    share = sum(size for _, size in account.sent_to_servers) / len(account.sent_to_servers)
    count = len(account.sent_to_servers)
    senders = f"{count} {'rank' if count == 1 else 'ranks'}"
    return [
        f"weights to each server: {_gb(share * count)} GB, sent by {senders}; most by rank {largest}, {_gb(most)} GB, "
        f"{most / share:.2f} of an equal share"
    ]


def _time(predicted: Prediction, name: str, on: Machine) -> list[str]:
    rows = [["predicted seconds", name]]
    largest = max(predicted.terms, key=lambda term: predicted.terms[term])
    for term, seconds in predicted.terms.items():
        rows.append([f"{term}{'  <- the largest' if term == largest else ''}", f"{seconds:.2f}"])
    rows.append(["an update", f"{predicted.update:.2f}"])
    if predicted.old_log_probs:
        rows.append(["log π_old, a mean over updates", f"{predicted.old_log_probs:.2f}"])
    rows.append(["gathering weights, once a cycle", f"{predicted.gather:.2f}"])
    return [
        *table(rows),
        f"{predicted.tokens_per_second:,.0f} tokens per second and GPU in training, "
        f"{predicted.model_flops / predicted.update / 1e12:.0f} TFLOP/s per GPU, "
        f"{predicted.utilisation:.0%} of its peak; without any fusion, operators other than products would take "
        f"{predicted.slowest.unfused:.1f} s more",
        f"{name}: {on.flops / 1e12:.0f} TFLOP/s of which {FLOPS_UTILIZATION:.0%} are reached, "
        f"{on.memory / 1e9:.0f} GB at {on.memory_rate / 1e9:.0f} GB/s, "
        f"links of {on.within / 1e9:.0f} GB/s within a node of {on.gpus} and "
        f"{on.between / 1e9:.0f} GB/s between nodes, of which {BANDWIDTH_UTILIZATION:.0%} are reached ({on.source})",
        f"its host: {on.host.memory / 1e12:.0f} TB at {on.host.rate / 1e9:.0f} GB/s, {on.host.pcie / 1e9:.0f} GB/s to "
        f"each GPU ({on.host.source})",
    ]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows with aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _stages(accounts: Sequence[Account]) -> list[str]:
    return [f"stage {account.stage + 1}" for account in accounts]


def _group(description: str) -> str:
    """Returns Megatron's name of a process group, shortened: "expert" of EXPERT_MODEL_PARALLEL_GROUP."""
    if description in ("default_pg", "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP"):
        return "all ranks"
    return description.lower().replace("_group", "").replace("_model_parallel", "").replace("_", " ")


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}" if size >= 1e8 or not size else f"{size / 1e9:.3f}"
