"""The time of an update on a machine, predicted from the ledger of a rank of each pipeline stage.

With m microbatches, p stages and v chunks a stage, the time of an update is

    slowest stage's time of m microbatches × (1 + (p − 1) / (m v)) + reduction of gradients + optimizer step,

where a microbatch's time is that of its products, at a share of the GPU's peak, and of its messages, at a share of the
links' rates. Of an optimizer on the host, pieces are updated while others are copied, and the GPU updates its own share
meanwhile, so the slowest of the three counts: the host's memory, which all ranks of a node share, PCIe, and the GPU.
Operators other than products are fused by Transformer Engine to an extent that is not known here: their
time without any fusion is given beside the prediction, not within it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from megatron_sspo.memory.estimate import CUDA_ALLOWANCE
from megatron_sspo.run import Run
from sspo_rehearsal.account import Account, Traffic
from sspo_rehearsal.batch import Workload, microbatches_held
from sspo_rehearsal.ledger import WITH_FROZEN
from sspo_rehearsal.machines import BANDWIDTH_UTILIZATION, FLOPS_UTILIZATION, Machine

# What a fused Adam reads and writes for each byte of main weights and moments (12 bytes an element): these twice, the
# gradient of 4 bytes, the weight of 2.
_FUSED_ADAM = 30 / 12
# The same in the host's memory, and the copies there and back: the gradient is written too, and the updated weights are
# read once more to be rounded, written, and read by the GPU.
_HOST_ADAM = 40 / 12


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Seconds of a stage's rank in an update, without waiting for other stages.

    Attributes:
        products: matrix products and attention; unfused: all other operators, if nothing were fused.
        messages: seconds by kind of collective in the microbatches; expert exchange is "all_to_all".
        reduction: of gradients; step: the optimizer's, with the gathering of parameters.
        host: what an optimizer on the host takes in addition.
    """

    products: float
    unfused: float
    messages: Mapping[str, float]
    reduction: float
    step: float
    host: float

    @property
    def microbatches(self) -> float:
        """Seconds of all microbatches."""
        return self.products + sum(self.messages.values())


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted time of an update, in seconds, and what follows from it.

    Attributes:
        bubble: seconds in which the slowest stage waits for the others.
        old_log_probs: seconds of the pass of log π_old, as a mean over a cycle's updates.
        gather: seconds of gathering all weights where the engine needs them, once a cycle; sending them to servers is
            not predicted.
        model_flops: FLOPs of a rank in an update without recomputation, as a mean over the stages: three times those
            of the forward pass, without the gradients of weights that are not trained.
    """

    stages: tuple[StageTime, ...]
    bubble: float
    old_log_probs: float
    gather: float
    model_flops: float
    tokens: int  # of an update over all ranks
    ranks: int
    peak_flops: float

    @property
    def slowest(self) -> StageTime:
        """The stage that the others wait for."""
        return max(self.stages, key=lambda stage: stage.microbatches + stage.reduction + stage.step + stage.host)

    @property
    def terms(self) -> dict[str, float]:
        """Returns the seconds of each term of an update."""
        stage = self.slowest
        messages = {f"messages: {kind}": seconds for kind, seconds in stage.messages.items() if seconds}
        return {
            "products": stage.products,
            **messages,
            "bubble": self.bubble,
            "reduction of gradients": stage.reduction,
            "optimizer step": stage.step,
            **({"optimizer on the host": stage.host} if stage.host else {}),
        }

    @property
    def update(self) -> float:
        """Seconds of an update, without the pass of log π_old."""
        return sum(self.terms.values())

    @property
    def utilisation(self) -> float:
        """The model FLOP/s utilisation of an update: the share of the peak rate, recomputation not counted."""
        return self.model_flops / (self.update * self.peak_flops)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of an update per second and GPU."""
        return self.tokens / self.update / self.ranks


def predict(run: Run, accounts: Sequence[Account], work: Workload, machine: Machine) -> Prediction:
    """Predicts the time of an update from the ledger of one rank of each pipeline stage."""
    factor = work.factor
    parallel = run.parallel
    stages = tuple(_stage_time(account, factor, machine, parallel.num_processes) for account in accounts)
    slowest = max(stage.microbatches for stage in stages)
    fill = (parallel.pipeline - 1) / (work.microbatches * parallel.virtual_pipeline)
    old = max(_seconds_of(account, {"old_log_probs"}, factor, machine) for account in accounts)
    forward, frozen = (
        sum(account.flops.get(phase, 0) for account in accounts) / len(accounts) * factor
        for phase in ("forward", "forward" + WITH_FROZEN)
    )
    return Prediction(
        stages=stages,
        bubble=slowest * fill,
        old_log_probs=old * (1 + fill) * (run.updates_per_sync - 1) / run.updates_per_sync,
        gather=max(_gather_seconds(account, machine) for account in accounts),
        model_flops=3 * forward - frozen,
        tokens=work.tokens,
        ranks=parallel.num_processes,
        peak_flops=machine.flops,
    )


def warnings(run: Run, accounts: Sequence[Account], work: Workload, found: Prediction, machine: Machine) -> list[str]:
    """Returns a line for everything about the layout that is most likely a mistake, with its remedy."""
    lines = []
    worst = max(sum(account.peak.values()) for account in accounts) + CUDA_ALLOWANCE
    if worst > machine.memory:
        lines.append(
            f"a rank needs {worst / 1e9:.1f} GB with {CUDA_ALLOWANCE / 1e9:.0f} GB for CUDA and NCCL, and a GPU has "
            f"{machine.memory / 1e9:.0f} GB: raise parallel.tensor, parallel.pipeline or parallel.expert, lower "
            "tokens_per_microbatch, or recompute layers (megatron.recompute_granularity=full)"
        )
    held = min(work.microbatches, microbatches_held(run.parallel))
    if work.rehearsed < held:
        lines.append(
            f"{work.rehearsed} microbatches were rehearsed, and a stage holds up to {held} at once, so the peaks are "
            "too low: leave out --microbatches"
        )
    exchanged = [row for row in accounts[0].collectives if row.kind == "all_to_all" and _nodes(row, machine) > 1]
    if exchanged:
        lines.append(
            f"experts are exchanged across {max(_nodes(row, machine) for row in exchanged)} nodes, where links are "
            f"{machine.within / machine.between:.0f} times slower: choose parallel.expert × parallel.expert_tensor of "
            f"at most {machine.gpus}, the GPUs of a node"
        )
    if found.utilisation < 0.1:
        name = max(found.terms, key=lambda term: found.terms[term])
        lines.append(
            f"the model FLOP/s utilisation is {found.utilisation:.0%}, most of the time is for {name}: use fewer GPUs, "
            "or raise tokens_per_microbatch or the batch"
        )
    if found.bubble > 0.3 * found.update:
        lines.append(
            f"the pipeline's bubble is {found.bubble / found.update:.0%} of an update: lower parallel.pipeline, raise "
            "parallel.virtual_pipeline, or have more microbatches (a smaller tokens_per_microbatch, a larger batch)"
        )
    return lines


def _stage_time(account: Account, factor: float, machine: Machine, num_ranks: int) -> StageTime:
    on_gpu = _FUSED_ADAM * account.resident.get("optimizer", 0) / (machine.memory_rate * BANDWIDTH_UTILIZATION)
    flops = sum(account.flops.get(phase, 0) for phase in ("forward", "backward"))
    traffic = sum(account.memory_traffic.get(phase, 0) for phase in ("forward", "backward"))
    rows = [row for row in account.collectives if row.phase in ("forward", "backward")]
    kinds = sorted({row.kind for row in rows})
    return StageTime(
        products=flops * factor / (machine.flops * FLOPS_UTILIZATION),
        unfused=traffic * factor / (machine.memory_rate * BANDWIDTH_UTILIZATION),
        messages={
            kind: _message_seconds([row for row in rows if row.kind == kind], machine) * factor for kind in kinds
        },
        reduction=_message_seconds([row for row in account.collectives if row.phase == "reduce"], machine),
        step=_message_seconds([row for row in account.collectives if row.phase == "step"], machine) + on_gpu,
        host=max(0.0, _host_seconds(account, machine, num_ranks) - on_gpu),
    )


def _host_seconds(account: Account, machine: Machine, num_ranks: int) -> float:
    """Returns the time of the share of the step that is taken on the host; gradients of 4 bytes go down by PCIe."""
    size, host = account.host.get("optimizer", 0), machine.host
    rate = host.rate / min(machine.gpus, num_ranks)
    return max(_HOST_ADAM * size / rate, size / 3 / host.pcie) / BANDWIDTH_UTILIZATION


def _seconds_of(account: Account, phases: set[str], factor: float, machine: Machine) -> float:
    flops = sum(account.flops.get(phase, 0) for phase in phases) * factor
    rows = [row for row in account.collectives if row.phase in phases]
    return flops / (machine.flops * FLOPS_UTILIZATION) + _message_seconds(rows, machine) * factor


def _gather_seconds(account: Account, machine: Machine) -> float:
    """Returns the time of the busier direction: a rank that puts weights together receives more than it sends.

    It is an upper bound where ranks are on several nodes, because messages within a node are counted as between nodes.
    """
    rows = [row for row in account.collectives if row.phase == "gather"]
    received = [replace(row, kind="send") for row in rows if row.kind == "recv"]
    return max(_message_seconds(rows, machine), _message_seconds(received, machine))


def _message_seconds(rows: Iterable[Traffic], machine: Machine) -> float:
    return sum(message_seconds(row, machine) for row in rows)


def message_seconds(row: Traffic, machine: Machine) -> float:
    """Returns the seconds of a kind of collective by the bytes that its ring or its pairs move over the slowest link.

    A ring of n ranks moves (n − 1)/n of the tensor over each link, twice for an all-reduce; between nodes it uses the
    ports of all its ranks on a node. In an all-to-all each rank sends 1/n of the tensor to each other rank by itself.
    """
    n = len(row.ranks)
    within, between = machine.within * BANDWIDTH_UTILIZATION, machine.between * BANDWIDTH_UTILIZATION
    nodes = _nodes(row, machine)
    if row.kind in ("send", "recv", "barrier"):
        return 0.0 if row.kind != "send" else row.bytes / (within if nodes == 1 else between)
    if row.kind == "all_to_all":
        on_node = n / nodes
        return row.bytes * (max(on_node - 1, 0) / n / within + (n - on_node) / n / between)
    passes = {"all_reduce": 2.0, "broadcast": n / (n - 1)}.get(row.kind, 1.0)
    moved = row.bytes * passes * (n - 1) / n
    return moved / within if nodes == 1 else moved / min(within, between * n / nodes)


def _nodes(row: Traffic, machine: Machine) -> int:
    return len({rank // machine.gpus for rank in row.ranks})
