from dataclasses import replace

import pytest

from megatron_sspo.run import Model, Parallel, Prompts, Rollouts, Run
from sspo_rehearsal.account import Account, Traffic
from sspo_rehearsal.batch import Workload
from sspo_rehearsal.ledger import WITH_FROZEN
from sspo_rehearsal.machines import BANDWIDTH_UTILIZATION, FLOPS_UTILIZATION, Host, Machine
from sspo_rehearsal.phases import phases
from sspo_rehearsal.prediction import message_seconds, predict, warnings
from sspo_rehearsal.sizes import find_config

MACHINE = Machine(
    gpus=4,
    flops=100.0 / FLOPS_UTILIZATION,
    memory=80e9,
    memory_rate=10.0 / BANDWIDTH_UTILIZATION,
    within=8.0 / BANDWIDTH_UTILIZATION,
    between=2.0 / BANDWIDTH_UTILIZATION,
    host=Host(memory=0, rate=4.0 / BANDWIDTH_UTILIZATION, pcie=0.5 / BANDWIDTH_UTILIZATION, source=""),
    source="a machine of round numbers",
)
WORK = Workload(
    prompt_tokens=10,
    response_tokens=10,
    sequences=96,
    microbatches=8,
    per_microbatch=6,
    rehearsed=2,
    data_ranks=2,
)


def traffic(kind: str, ranks: tuple[int, ...], size: int, phase: str = "forward") -> Traffic:
    return Traffic(phase=phase, kind=kind, group="group", ranks=ranks, calls=1, bytes=size)


@pytest.mark.parametrize(
    "kind, ranks, seconds",
    [
        ("all_gather", (0, 1), 80 / 2 / 8),
        ("reduce_scatter", (0, 1, 2, 3), 80 * 3 / 4 / 8),
        ("all_reduce", (0, 1, 2, 3), 2 * 80 * 3 / 4 / 8),
        ("broadcast", (0, 1), 80 / 8),
        ("all_gather", (0, 4), 80 / 2 / 2),  # one rank a node, so one port
        ("all_gather", (0, 1, 2, 3, 4, 5, 6, 7), 80 * 7 / 8 / 8),  # four ports a node are as fast as its links
        ("all_gather", (0, 1, 4, 5), 80 * 3 / 4 / 4),  # two ports
        ("all_to_all", (0, 1, 2, 3), 80 * 3 / 4 / 8),
        ("all_to_all", (0, 1, 4, 5), 80 * (1 / 4 / 8 + 2 / 4 / 2)),
        ("send", (0, 4), 80 / 2),
        ("send", (0, 1), 80 / 8),
        ("recv", (0, 4), 0),  # its sender has the seconds
    ],
)
def test_seconds_of_messages(kind: str, ranks: tuple[int, ...], seconds: float) -> None:
    assert message_seconds(traffic(kind, ranks, 80), MACHINE) == pytest.approx(seconds)


def account(stage: int = 0, flops: int = 1000, **changes: object) -> Account:
    found = Account(
        rank=stage,
        stage=stage,
        resident={"weights": 1, "optimizer": 12},
        host={},
        peaks={"update": {"weights": 1}},
        written=0,
        sent_to_servers=(),
        collectives=(traffic("all_to_all", (0, 1), 80), traffic("reduce_scatter", (0, 1), 80, "reduce")),
        flops={"old_log_probs": flops, "forward": flops, "backward": 2 * flops},
        memory_traffic={"forward": 100, "backward": 100},
        seconds={},
        process_memory=0,
    )
    return replace(found, **changes)


def make_run(parallel: Parallel) -> Run:
    return Run(name="run", model=Model(path="m"), prompts=Prompts(source="s"), num_updates=1, parallel=parallel)


def test_terms_of_an_update() -> None:
    run = make_run(Parallel(data=2, expert=2))
    found = predict(run, [account()], WORK, MACHINE)
    assert found.terms == pytest.approx(
        {
            "products": 3000 * 4 / 100,  # 8 microbatches, of which 2 were rehearsed
            "messages: all_to_all": 80 / 2 / 8 * 4,
            "bubble": 0,
            "reduction of gradients": 80 / 2 / 8,
            "optimizer step": 12 * 30 / 12 / 10,
        }
    )
    assert found.update == pytest.approx(sum(found.terms.values()))
    assert found.old_log_probs == pytest.approx(1000 * 4 / 100 / 2), "of every second update"
    assert found.model_flops == pytest.approx(3 * 1000 * 4), "recomputation is not counted"
    adapted = account()
    adapted = replace(adapted, flops={**adapted.flops, "forward" + WITH_FROZEN: 900})
    assert predict(run, [adapted], WORK, MACHINE).model_flops == pytest.approx((3 * 1000 - 900) * 4)
    assert found.utilisation == pytest.approx(12000 / (found.update * MACHINE.flops))
    assert found.tokens_per_second == pytest.approx(1920 / found.update / 2)


@pytest.mark.parametrize(
    ("ranks", "pcie", "seconds"),
    [
        (1, 10.0, 120 * 40 / 12 / 4),  # 40 bytes for each of 12 by the host's memory
        (2, 10.0, 120 * 40 / 12 / 2),  # which two ranks share
        (8, 10.0, 120 * 40 / 12 / 1),  # or the four of a node
        (1, 0.1, 120 / 3 / 0.1),  # PCIe is slower: a gradient of 4 bytes for each of 12
    ],
)
def test_the_host_is_shared_and_hides_what_the_gpu_does(ranks, pcie, seconds) -> None:
    host = replace(MACHINE.host, pcie=pcie / BANDWIDTH_UTILIZATION)
    run, on_host = make_run(Parallel(data=ranks)), account(host={"optimizer": 120, "staging": 5})
    terms = predict(run, [on_host], WORK, replace(MACHINE, host=host)).terms
    assert terms["optimizer on the host"] == pytest.approx(seconds - 12 * 30 / 12 / 10)
    assert terms["optimizer step"] == pytest.approx(12 * 30 / 12 / 10)


def test_the_bubble_is_that_of_the_slowest_stage() -> None:
    run = make_run(Parallel(pipeline=2, data=2))
    stages = [account(0, collectives=()), account(1, flops=2000, collectives=())]
    found = predict(run, stages, WORK, MACHINE)
    assert found.slowest.products == pytest.approx(6000 * 4 / 100)
    assert found.bubble == pytest.approx(found.slowest.products / 8)
    interleaved = predict(make_run(Parallel(pipeline=2, virtual_pipeline=2)), stages, WORK, MACHINE)
    assert interleaved.bubble == pytest.approx(found.bubble / 2)


def test_warnings_name_what_is_absurd() -> None:
    run = make_run(Parallel(pipeline=2, data=4, expert=8))
    across = account(
        written=0, collectives=(traffic("all_to_all", tuple(range(8)), 80),), peaks={"update": {"weights": 75 * 10**9}}
    )
    few = replace(WORK, microbatches=1, rehearsed=1, sequences=12)
    found = warnings(run, [across], few, predict(run, [across], few, MACHINE), MACHINE)
    assert any("81.0 GB" in line and "a GPU has 80 GB" in line for line in found)
    assert any("experts are exchanged across 2 nodes" in line and "at most 4" in line for line in found)
    assert any("bubble is 4" in line or "bubble is 5" in line for line in found)
    slow = replace(across, flops={"forward": 1, "backward": 2})
    flat = make_run(Parallel(data=8, expert=8))
    found = warnings(flat, [slow], few, predict(flat, [slow], few, MACHINE), MACHINE)
    assert any("utilisation is 0%" in line and "messages: all_to_all" in line for line in found)
    fine = make_run(Parallel(data=2, expert=2))
    assert warnings(fine, [account()], WORK, predict(fine, [account()], WORK, MACHINE), MACHINE) == []


@pytest.mark.parametrize(
    ("parallel", "rehearsed", "warned"),
    [
        (Parallel(pipeline=4), 3, True),
        (Parallel(pipeline=4), 4, False),
        (Parallel(pipeline=4, virtual_pipeline=2), 7, True),
        (Parallel(pipeline=4, virtual_pipeline=2), 8, False),
    ],
)
def test_fewer_microbatches_than_a_pipeline_holds_are_warned_of(parallel, rehearsed, warned) -> None:
    run, work = make_run(parallel), replace(WORK, rehearsed=rehearsed, microbatches=16)
    found = warnings(run, [account()], work, predict(run, [account()], work, MACHINE), MACHINE)
    assert any(f"{rehearsed} microbatches were rehearsed" in line for line in found) is warned


TURNS = {"release_memory": True, "server": {"tp_size": 2, "mem_fraction_static": 0.5}}


@pytest.mark.parametrize(("options", "gradients", "server"), [({}, 4, 0), (TURNS, 0, 30)])
def test_in_turns_gradients_and_servers_do_not_meet(options, gradients, server) -> None:
    """A server takes half of the 80 GB less 14 GB of weights and optimizer and 6 GB for CUDA."""
    config, _ = find_config("Qwen3-8B")
    static = {"weights": 10 * 10**9, "optimizer": 4 * 10**9, "gradients": 4 * 10**9}
    peaks = {"gather": {**static, "gather": 10**9}, "old_log_probs": {**static, "activations": 5 * 10**9}}
    peaks |= {"update": {**static, "activations": 9 * 10**9}, "step": static, "checkpoint": static}
    run = replace(make_run(Parallel()), rollouts=Rollouts(engine="sglang", options=options))
    found = {phase.name: phase for phase in phases(run, [account(resident=static, peaks=peaks)], config, MACHINE)}
    assert {name: phase.trainer / 1e9 for name, phase in found.items()} == {
        "generate": 20 + gradients,
        "sync": 21 + gradients,
        "log π_old": 25 + gradients,
        "update": 33,
        "checkpoint": 24,
    }
    assert [phase.server / 1e9 for phase in found.values()] == [server, server, 0, 0, 0]
