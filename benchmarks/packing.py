"""Compares plans of microbatches by the work that ranks wait for, with those of verl and slime where they are given.

    python benchmarks/packing.py
    pip download --no-deps verl==0.9.1 && unzip -q verl-0.9.1-py3-none-any.whl -d /tmp/verl
    git clone --depth 1 https://github.com/THUDM/slime /tmp/slime
    python benchmarks/packing.py --verl /tmp/verl --slime /tmp/slime
    python benchmarks/packing.py --shared

Ranks that exchange tokens for experts wait for each other in every microbatch. The efficiency of a plan is its work
divided by (ranks × the sum over microbatches of the largest work of a rank). A cell has that efficiency, the number of
microbatches of a rank, and the seconds of planning. The work of a sequence of L tokens is
L (1 + L / 24576), verl's measure for a model of 7B parameters.

With `--shared`, the sequences are in groups that may share their prompts, as the trainer plans them on a CPU. A cell
has the tokens of separate rows divided by those of the plan, the microbatches of a rank, and the seconds.
"""

import argparse
import importlib
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from megatron_sspo.batching.pack import pack
from megatron_sspo.batching.plan import Packing, SharingCandidates
from megatron_sspo.batching.plan import Plan as SharedPlan
from megatron_sspo.batching.work import Work

Plan = Sequence[Sequence[Sequence[int]]]
Planner = Callable[[list[int], int], Plan]
RANKS = 64
GROUP_SIZES = (8, 16)  # of `--shared`
_LINEAR = 24_576


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--verl", type=Path, metavar="FOLDER", help="verl's unpacked wheel")
    parser.add_argument("--slime", type=Path, metavar="FOLDER", help="slime's sources")
    parser.add_argument("--shared", action="store_true", help="time plans with shared prompts instead")
    options = parser.parse_args()
    if options.shared:
        time_shared(options.sequences)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Prints the table of planners."""
    planners: dict[str, Planner] = {"by tokens": by_tokens, "by work": by_work}
    for name, folder, planner_of in (("verl", options.verl, verl_planner), ("slime", options.slime, slime_planner)):
        if folder and folder.exists():
            planners[name] = planner_of(folder)
        elif folder:
            print(f"{name}: left out ({folder} is missing)", file=sys.stderr)
    print(f"| limit | lengths | {' | '.join(planners)} |\n|---|---|{'---|' * len(planners)}", flush=True)
    for max_tokens in (16_384, 32_768):
        for name, lengths in distributions(options.sequences, max_tokens):
            row = []
            for planner, plan in planners.items():
                start = time.process_time()
                found = plan(lengths, max_tokens)
                seconds = time.process_time() - start
                check(found, lengths, max_tokens, planner)
                row.append(f"{efficiency(found, lengths):.3f} / {len(found[0])} / {seconds:.2f}")
            print(f"| {max_tokens:,} | {name} | {' | '.join(row)} |", flush=True)


def time_shared(size: int) -> None:
    """Prints the table of plans with shared prompts."""
    columns = [f"groups of {group_size}" for group_size in GROUP_SIZES]
    print(f"| limit | lengths | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}", flush=True)
    for max_tokens in (16_384, 32_768):
        packing = Packing(num_ranks=RANKS, max_tokens=max_tokens, work=Work(token=_LINEAR - 1, pair=2))
        for name, lengths in distributions(size, max_tokens):
            row = []
            for group_size in GROUP_SIZES:
                groups = in_groups(lengths, group_size, max_tokens)
                start = time.process_time()
                plan = packing.plan(groups, share_prompts=True)
                seconds = time.process_time() - start
                tokens = tokens_of(packing, groups, plan)
                assert max(max(of_rank) for of_rank in tokens) <= max_tokens
                separate = sum(group.prompt * group_size + sum(group.responses) for group in groups)
                row.append(f"{separate / sum(map(sum, tokens)):.2f} / {len(plan[0])} / {seconds:.2f}")
            print(f"| {max_tokens:,} | {name} | {' | '.join(row)} |", flush=True)


def in_groups(lengths: list[int], group_size: int, longest: int) -> list[SharingCandidates]:
    """Returns groups of responses to prompts of up to an eighth of the longest sequence."""
    random, groups = np.random.default_rng(1), []
    for first in range(0, len(lengths), group_size):
        indices = range(first, min(first + group_size, len(lengths)))
        prompt = int(random.integers(2, longest // 8))
        groups.append(SharingCandidates(prompt, [min(lengths[i], longest - prompt) for i in indices], indices))
    return groups


def tokens_of(packing: Packing, groups: Sequence[SharingCandidates], plan: SharedPlan) -> list[list[int]]:
    """Returns the tokens of each rank's microbatches; checks that the plan has every sequence once."""
    group_of = {index: group for group in groups for index in group.indices}

    def tokens(part: Sequence[int]) -> int:
        group = group_of[part[0]]
        assert set(part) <= set(group.indices)
        return packing.part_tokens(group.prompt, [group.responses[i - group.indices[0]] for i in part])

    assert sorted(i for of_rank in plan for parts in of_rank for part in parts for i in part) == sorted(group_of)
    return [[sum(map(tokens, parts)) for parts in of_rank] for of_rank in plan]


def distributions(size: int, longest: int) -> Iterator[tuple[str, list[int]]]:
    """Yields names and lengths, from 1 to `longest` tokens."""
    random = np.random.default_rng(0)
    lengths = {
        "lognormal": random.lognormal(np.log(longest / 10), 0.6, size),
        "long tail": (random.pareto(1.3, size) + 1) * longest / 27,
        "bimodal": np.where(
            random.random(size) < 0.3,
            random.normal(0.75 * longest, 0.1 * longest, size),
            random.normal(0.1 * longest, 0.03 * longest, size),
        ),
        "a quarter longest": np.where(random.random(size) < 0.25, longest, random.uniform(1, 0.66 * longest, size)),
        "uniform": random.uniform(1, longest, size),
    }
    for name, drawn in lengths.items():
        yield name, drawn.clip(1, longest).astype(int).tolist()


def work_of(length: int) -> int:
    """Returns the work of a sequence, in units of 1 / 24,576 of a token's."""
    return length * (_LINEAR + length)


def efficiency(plan: Plan, lengths: list[int]) -> float:
    loads = [[sum(work_of(lengths[i]) for i in members) for members in of_rank] for of_rank in plan]
    return sum(map(sum, loads)) / (len(plan) * sum(max(at_once) for at_once in zip(*loads, strict=True)))


def check(plan: Plan, lengths: list[int], max_tokens: int, planner: str) -> None:
    """Checks that a plan has every sequence once; says where it exceeds the limit of tokens."""
    assert sorted(i for of_rank in plan for members in of_rank for i in members) == list(range(len(lengths)))
    largest = max(sum(lengths[i] for i in members) for of_rank in plan for members in of_rank)
    if largest > max_tokens:
        print(f"{planner}: a microbatch has {largest} tokens, more than {max_tokens}", file=sys.stderr)


def by_tokens(lengths: list[int], max_tokens: int) -> Plan:
    return pack(lengths, num_ranks=RANKS, max_tokens=max_tokens)


def by_work(lengths: list[int], max_tokens: int) -> Plan:
    return pack(lengths, num_ranks=RANKS, max_tokens=max_tokens, work=[work_of(length) for length in lengths])


def verl_planner(folder: Path) -> Planner:
    """Returns verl's way: ranks get equal numbers of sequences, and each is cut by work until its microbatches fit."""
    sys.path.insert(0, str(folder))
    package = types.ModuleType("verl")
    package.__path__ = [str(folder / "verl")]  # without its __init__, which needs Ray
    unused = {"verl.protocol": "DataProto", "verl.utils.tensordict_utils": "_", "verl.utils.device": "get_device_name"}
    utils = types.ModuleType("verl.utils")
    utils.__path__ = [str(folder / "verl" / "utils")]
    sys.modules |= {"verl": package, "verl.utils": utils}
    for module, name in unused.items():
        sys.modules[module] = types.ModuleType(module)
        setattr(sys.modules[module], name, None)
    utils.__dict__["tensordict_utils"] = sys.modules["verl.utils.tensordict_utils"]
    partitions = importlib.import_module("verl.utils.seqlen_balancing").get_seqlen_balanced_partitions

    def plan(lengths: list[int], max_tokens: int) -> Plan:
        ranks = partitions([work_of(length) for length in lengths], k_partitions=RANKS, equal_size=True)
        count = max(-(-sum(lengths[i] for i in members) // max_tokens) for members in ranks)
        while True:
            found = []
            for members in ranks:
                work = [work_of(lengths[i]) for i in members]
                parts = [[members[i] for i in part] for part in partitions(work, count, equal_size=False)]
                found.append(sorted(parts, key=lambda part: -sum(work_of(lengths[i]) for i in part)))
            if all(sum(lengths[i] for i in part) <= max_tokens for parts in found for part in parts):
                return found
            count += 1

    return plan


def slime_planner(folder: Path) -> Planner:
    """Returns slime's way, with `--use-dynamic-batch-size --balance-data` and the sizes of Qwen2.5-7B."""
    sys.path.insert(0, str(folder))
    schedule = importlib.import_module("slime.utils.dp_schedule").build_dp_schedule
    layout = {"dp_size": RANKS, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    sizes = {"hidden_size": 3584, "num_attention_heads": 28, "num_query_groups": 4, "kv_channels": 128}
    sizes |= {"ffn_hidden_size": 18944, "num_layers": 28, "num_experts": None, "vocab_size": 152064}

    def plan(lengths: list[int], max_tokens: int) -> Plan:
        switches = {"use_dynamic_batch_size": True, "balance_data": True, "balance_by_flops": False}
        arguments = types.SimpleNamespace(max_tokens_per_gpu=max_tokens, **switches, **sizes)
        count = len(lengths)
        indices = list(range(count))
        parts, microbatches, _, _ = schedule(
            arguments, layout, lengths, global_batch_size=count, rollout_indices=indices
        )
        return [
            [[own[i] for i in members] for members in of_rank] for own, of_rank in zip(parts, microbatches, strict=True)
        ]

    return plan


if __name__ == "__main__":
    main()
