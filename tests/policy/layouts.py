"""The layouts that have to agree, and the script that measures them; every rank of a group runs it.

    python layouts.py FOLDERS BATCHES RESULTS

It measures all layouts of the group's size one after the other.
"""

import hashlib
import re
import statistics
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from megatron_sspo.batching import plan
from megatron_sspo.objective import (
    AtanLog,
    Clip,
    Correction,
    ExpAtan,
    ExpSig,
    Gumbel,
    OverLength,
    OverSequences,
    OverTokens,
    Penalties,
    Pessimistic,
    SigLog,
    Sigmoid,
    Sums,
    aspo,
    ce_gppo,
    cispo,
    cppo,
    dapo,
    dgpo,
    dppo_kl,
    dppo_tv,
    drpo,
    dual_clip,
    erc,
    gmpo,
    gmpo_wide,
    grpo,
    gspo,
    ipo,
    kpop,
    luspo,
    maspo,
    minpro,
    opsm,
    pspo,
    rloo,
    sapo,
    scopic,
    spo,
    sspo,
    topr,
    vespo,
)
from megatron_sspo.run import Parallel, Teacher


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout, and what is run in it."""

    kind: str  # kind of model
    parallel: Parallel = Parallel()
    tokens: int = 64  # tokens per microbatch
    batch: str = "ragged"  # or one of tiny_policy.BATCHES
    megatron: Mapping[str, Any] = field(default_factory=dict)
    ddp: Mapping[str, Any] = field(default_factory=dict)
    every_objective: bool = False  # measure the gradient of every row of the table, not only of a few
    dtype: str = "float32"
    lora: bool = False  # train adapters of all layers
    series: str = ""  # what the names of the layouts begin with that have the same references

    @property
    def reference(self) -> str:
        """The name of the layout of one process with the same settings."""
        return f"{self.series}{self.kind}" + (f" {self.batch}" if self.batch != "ragged" else "")


DP2, DP4 = Parallel(data=2), Parallel(data=4)
EP2, EP4, DP2_EP2 = Parallel(data=2, expert=2), Parallel(data=4, expert=4), Parallel(data=4, expert=2)
TP2, TP2_SP = Parallel(tensor=2), Parallel(tensor=2, sequence=True)
TP2_SP_EP2, TP2_SP_ETP2 = replace(TP2_SP, expert=2), replace(TP2_SP, expert_tensor=2)
PP2, PP2_VPP2 = Parallel(pipeline=2), Parallel(pipeline=2, virtual_pipeline=2)
CP2, CP4, CP2_EP2 = Parallel(context=2), Parallel(context=4), Parallel(context=2, expert=2)

OVERLAP = {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 20_000}
ALONE = {**OVERLAP, "bucket_size": 5_000}  # the output weight has its own bucket
NOT_DISTRIBUTED = {"use_distributed_optimizer": False}
ALL_GATHER = {"moe_token_dispatcher_type": "allgather"}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "moe"]}
# router losses are per microbatch, so every layout must make the same four microbatches
AUXILIARY = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.05, "moe_z_loss_coeff": 0.01}


def _auxiliary(parallel: Parallel = Parallel(), **options: Any) -> Layout:
    return Layout(kind="moe", parallel=parallel, batch="even", tokens=40, megatron={**AUXILIARY, **options})


def _replay(parallel: Parallel = Parallel(), kind: str = "moe", **options: Any) -> Layout:
    return Layout(kind=kind, parallel=parallel, batch="routed", megatron=options)


# Every kind of parallelism, option and batch, most of them combined: `make test` measures these.
COVERING = {
    # one process
    "moe": Layout(kind="moe", tokens=4096),
    "moe few": Layout(kind="moe", tokens=4096, batch="few"),
    "moe even": _auxiliary(),
    "moe routed": replace(_replay(), tokens=4096),
    "dense": Layout(kind="dense", tokens=4096),
    "tied": Layout(kind="tied", tokens=4096),
    "one_group": Layout(kind="one_group", tokens=4096),
    "moe, many microbatches": Layout(kind="moe", tokens=32, every_objective=True),
    "moe, selective recompute": Layout(kind="moe", megatron=SELECTIVE),
    "moe, routes, selective recompute": _replay(**SELECTIVE),
    # two
    "moe DP2": Layout(kind="moe", parallel=DP2, every_objective=True),
    "moe DP2, overlap": Layout(kind="moe", parallel=DP2, ddp=OVERLAP, tokens=32),
    "moe DP2, not distributed": Layout(kind="moe", parallel=DP2, ddp=NOT_DISTRIBUTED),
    "dense DP2, overlap, small buckets": Layout(kind="dense", parallel=DP2, ddp=ALONE),
    "moe EP2, all-gather": Layout(kind="moe", parallel=EP2, megatron=ALL_GATHER),
    "moe TP2 SP EP2": Layout(kind="moe", parallel=TP2_SP_EP2, every_objective=True),
    "moe TP2 SP EP2, recompute": Layout(kind="moe", parallel=TP2_SP_EP2, megatron=RECOMPUTE),
    "moe PP2 VPP2": Layout(kind="moe", parallel=PP2_VPP2, every_objective=True),
    "moe PP2 VPP2, overlap": Layout(kind="moe", parallel=PP2_VPP2, ddp=OVERLAP),
    "tied TP2 SP": Layout(kind="tied", parallel=TP2_SP),
    "one_group TP2 SP": Layout(kind="one_group", parallel=TP2_SP),  # cuts the single key-value head in two
    "tied PP2 VPP2": Layout(kind="tied", parallel=PP2_VPP2),
    "dense CP2": Layout(kind="dense", parallel=CP2),
    "moe EP2, auxiliary": _auxiliary(EP2),
    "moe TP2 SP ETP1, auxiliary": _auxiliary(TP2_SP),
    "moe EP2, routes, recompute": _replay(EP2, **RECOMPUTE),
    "moe PP2, routes": _replay(PP2),
    "moe PP2 VPP2, routes, recompute": _replay(PP2_VPP2, **RECOMPUTE),
    "moe TP2 SP EP2, routes": _replay(TP2_SP_EP2),
    # four
    "moe EP4, few sequences": Layout(kind="moe", parallel=EP4, batch="few"),
    "moe PP2 VPP2 EP2": Layout(kind="moe", parallel=replace(PP2_VPP2, data=2, expert=2)),
    "moe TP2 SP DP2 EP2 ETP2": Layout(kind="moe", parallel=replace(TP2_SP_ETP2, data=2, expert=2)),
    "moe TP2 SP DP2, overlap": Layout(kind="moe", parallel=replace(TP2_SP, data=2), ddp=OVERLAP),
    "dense TP2 PP2": Layout(kind="dense", parallel=replace(TP2, pipeline=2)),
    "tied PP2 DP2, overlap, small buckets": Layout(kind="tied", parallel=replace(PP2, data=2), ddp=ALONE, tokens=32),
    "moe CP4": Layout(kind="moe", parallel=CP4),
    "moe CP2 DP2 EP4": Layout(kind="moe", parallel=replace(CP2, data=2, expert=4)),
    "moe CP2 TP2 SP EP2": Layout(kind="moe", parallel=replace(TP2_SP_EP2, context=2), every_objective=True),
    "tied CP2 PP2": Layout(kind="tied", parallel=replace(CP2, pipeline=2)),
    "moe CP2 TP2 SP EP2, routes, recompute": _replay(replace(TP2_SP_EP2, context=2), **RECOMPUTE),
    "moe CP2 TP2 SP EP2, auxiliary": _auxiliary(replace(TP2_SP_EP2, context=2)),
    "moe TP2 SP PP2 VPP2, auxiliary": _auxiliary(replace(TP2_SP, pipeline=2, virtual_pipeline=2)),
}
# Other combinations of the same: `make test-layout` measures these, too.
REPEATING = {
    # one process
    "tied, many microbatches": Layout(kind="tied", tokens=32),
    "moe, recompute": Layout(kind="moe", megatron=RECOMPUTE),
    "moe, not distributed": Layout(kind="moe", ddp=NOT_DISTRIBUTED),
    "moe, all-gather": Layout(kind="moe", megatron=ALL_GATHER),
    "moe, routes": _replay(),
    "moe, routes, recompute": _replay(**RECOMPUTE),
    # two
    "tied DP2, overlap": Layout(kind="tied", parallel=DP2, ddp=OVERLAP, tokens=32),
    "moe EP2": Layout(kind="moe", parallel=EP2, every_objective=True),
    "moe EP2, overlap": Layout(kind="moe", parallel=EP2, ddp=OVERLAP),
    "moe TP2 SP ETP2": Layout(kind="moe", parallel=TP2_SP_ETP2),
    "moe TP2 SP ETP1": Layout(kind="moe", parallel=TP2_SP),
    "moe PP2": Layout(kind="moe", parallel=PP2),
    "moe PP2, all-gather": Layout(kind="moe", parallel=PP2, megatron=ALL_GATHER),
    "moe PP2 VPP2, recompute": Layout(kind="moe", parallel=PP2_VPP2, megatron=RECOMPUTE),
    "dense TP2": Layout(kind="dense", parallel=TP2, every_objective=True),
    "dense TP2 SP": Layout(kind="dense", parallel=TP2_SP),
    "tied PP2": Layout(kind="tied", parallel=PP2),
    "moe CP2": Layout(kind="moe", parallel=CP2, every_objective=True),
    "moe CP2, recompute": Layout(kind="moe", parallel=CP2, megatron=RECOMPUTE),
    "moe CP2 EP2": Layout(kind="moe", parallel=CP2_EP2),
    "moe CP2 EP2, all-gather": Layout(kind="moe", parallel=CP2_EP2, megatron=ALL_GATHER),
    "moe DP2, auxiliary": _auxiliary(DP2),
    "moe TP2 SP EP2, auxiliary": _auxiliary(TP2_SP_EP2),
    "moe PP2 VPP2, auxiliary": _auxiliary(PP2_VPP2),
    "moe CP2, auxiliary": _auxiliary(CP2),
    "moe EP2, auxiliary, all-gather": _auxiliary(EP2, **ALL_GATHER),
    "moe EP2, routes": _replay(EP2),
    "moe PP2, routes, recompute": _replay(PP2, **RECOMPUTE),
    "moe PP2 VPP2, routes": _replay(PP2_VPP2),
    "moe TP2 SP EP2, routes, recompute": _replay(TP2_SP_EP2, **RECOMPUTE),
    "moe CP2, routes": _replay(CP2),
    "moe CP2, routes, recompute": _replay(CP2, **RECOMPUTE),
    # four
    "moe DP4": Layout(kind="moe", parallel=DP4),
    "moe EP4": Layout(kind="moe", parallel=EP4),
    "moe EP4, all-gather": Layout(kind="moe", parallel=EP4, megatron=ALL_GATHER),
    "moe DP2 EP2": Layout(kind="moe", parallel=DP2_EP2),
    "moe PP2 EP2": Layout(kind="moe", parallel=replace(PP2, data=2, expert=2)),
    "moe TP2 SP PP2": Layout(kind="moe", parallel=replace(TP2_SP, pipeline=2)),
    "tied TP2 PP2": Layout(kind="tied", parallel=replace(TP2, pipeline=2)),
}
_FIRST_ALONE = {"num_layers_in_first_pipeline_stage": 1, "num_layers_in_last_pipeline_stage": 3}


def _of_family(kind: str, *without: str) -> dict[str, Layout]:
    """Returns layouts of a family, but those named."""
    several = {
        "EP2": Layout(kind=kind, parallel=EP2),
        "TP2 SP EP2, recompute": Layout(kind=kind, parallel=TP2_SP_EP2, megatron=RECOMPUTE),
        "TP2 SP ETP2": Layout(kind=kind, parallel=TP2_SP_ETP2),
        "PP2 VPP2": Layout(kind=kind, parallel=PP2_VPP2),
        "PP2, one layer first": Layout(kind=kind, parallel=PP2, megatron=_FIRST_ALONE),
        "CP2": Layout(kind=kind, parallel=CP2),
    }
    found = {f"{kind} {name}": layout for name, layout in several.items() if name not in without}
    return {kind: Layout(kind=kind, tokens=4096), **found}


COVERING |= _of_family("glm4") | _of_family("mla")  # dense first layers, shared experts, routers with a bias
REPEATING |= _of_family("glm4_odd")
COVERING |= _of_family("minimax", "TP2 SP ETP2", "PP2, one layer first")  # norms of all heads together
# sinks, windows, biased experts that are one tensor in a folder
COVERING |= _of_family("gpt_oss", "TP2 SP ETP2", "PP2, one layer first")
# gated delta nets, and attention with an output gate
COVERING |= _of_family("qwen3_next", "PP2, one layer first", "CP2")
COVERING |= _of_family("qwen3_5", "TP2 SP ETP2", "PP2 VPP2", "CP2")
COVERING |= {
    "gpt_oss routed": replace(_replay(kind="gpt_oss"), tokens=4096),
    "gpt_oss EP2, routes": _replay(EP2, "gpt_oss"),
    "mla routed": replace(_replay(kind="mla"), tokens=4096),
    "mla TP2 SP EP2, routes, recompute": _replay(TP2_SP_EP2, "mla", **RECOMPUTE),
    "qwen3_next routed": replace(_replay(kind="qwen3_next"), tokens=4096),
    "qwen3_next EP2, routes, recompute": _replay(EP2, "qwen3_next", **RECOMPUTE),
}
LAYOUTS = COVERING | REPEATING


def _adapted(kind: str, parallel: Parallel = Parallel(), **fields: Any) -> Layout:
    return Layout(kind=kind, parallel=parallel, lora=True, series="lora ", **fields)


# Adapters of every layer: each way in which a factor is cut, summed and counted in the norm.
ADAPTED = {
    "lora moe": _adapted("moe", tokens=4096),
    "lora dense": _adapted("dense", tokens=4096),
    "lora one_group": _adapted("one_group", tokens=4096),
    "lora tied": _adapted("tied", tokens=4096),
    "lora glm4": _adapted("glm4", tokens=4096),
    "lora moe, recompute": _adapted("moe", megatron=RECOMPUTE),
    "lora moe DP2": _adapted("moe", DP2),
    "lora moe DP2, not distributed": _adapted("moe", DP2, ddp=NOT_DISTRIBUTED),
    "lora moe EP2, overlap": _adapted("moe", EP2, ddp=OVERLAP),
    "lora moe TP2 SP EP2": _adapted("moe", TP2_SP_EP2),
    "lora moe TP2 SP ETP2": _adapted("moe", TP2_SP_ETP2),
    "lora moe TP2 SP ETP1": _adapted("moe", TP2_SP),
    "lora dense TP2": _adapted("dense", TP2),
    "lora dense TP2 SP": _adapted("dense", TP2_SP),
    "lora one_group TP2 SP": _adapted("one_group", TP2_SP),
    "lora glm4 TP2 SP EP2": _adapted("glm4", TP2_SP_EP2),
    "lora moe PP2 VPP2": _adapted("moe", PP2_VPP2),
    "lora tied PP2": _adapted("tied", PP2),
    "lora moe CP2": _adapted("moe", CP2),
    "lora moe TP2 SP DP2 EP2 ETP2": _adapted("moe", replace(TP2_SP_ETP2, data=2, expert=2)),
    "lora moe TP2 SP EP2, recompute": _adapted("moe", TP2_SP_EP2, megatron=RECOMPUTE),
    "lora moe CP2 TP2 SP EP2": _adapted("moe", replace(TP2_SP_EP2, context=2)),
}
DELTA_NETS = ("qwen3_next", "qwen3_5")  # whose rows share no prompts
# latent attention and gated delta nets
NO_ADAPTERS = ("mla", "mla_odd", "mla_glm", "mla_kimi", *DELTA_NETS)
# All others of `make test`, but those with losses of routers, which share no prompts: for `make test-long`.
ADAPTED_TOO = {
    f"lora {name}": replace(layout, lora=True, series="lora ", every_objective=False)
    for name, layout in COVERING.items()
    if layout.batch != "even" and layout.kind not in NO_ADAPTERS and f"lora {name}" not in ADAPTED
}
ADAPTED |= ADAPTED_TOO
# What several ranks measure on GPUs (tests/gpu/ranks), in order of value: every kind of communication, in both dtypes.
NO_OVERLAP = {"overlap_grad_reduce": False, "overlap_param_gather": False}
_FIRST = (
    *("moe DP2", "moe EP2", "moe TP2 SP ETP1", "moe PP2", "moe DP4", "moe EP4", "moe TP2 SP EP2", "moe TP2 SP ETP2"),
    *("moe PP2 VPP2", "moe CP2", "moe DP2, overlap", "moe EP2, routes", "moe TP2 SP EP2, routes"),
)
_MORE = {
    "moe DP2, no overlap": Layout(kind="moe", parallel=DP2, ddp=NO_OVERLAP),
    "moe TP2 SP DP2 EP2": Layout(kind="moe", parallel=replace(TP2_SP_EP2, data=2)),
    "moe CP2, all-gather": Layout(kind="moe", parallel=CP2, megatron={"cp_comm_type": "all_gather"}),
    "moe CP2, a2a": Layout(kind="moe", parallel=CP2, megatron={"cp_comm_type": "a2a"}),
}
_ON_GPUS = {name: LAYOUTS[name] for name in ("moe", "moe routed", *_FIRST)} | _MORE
_FLOAT32 = {"dtype": "float32", "series": "float32 ", "every_objective": False}
# Rounding would choose another expert for some token, and so another gradient: all layouts replay the same routes.
_BFLOAT16 = {"dtype": "bfloat16", "series": "bfloat16 ", "every_objective": False, "batch": "routed"}
ON_GPUS = {f"float32 {name}": replace(layout, **_FLOAT32) for name, layout in _ON_GPUS.items()} | {
    f"bfloat16 {name}": replace(layout, **_BFLOAT16)
    for name, layout in _ON_GPUS.items()
    if name != "moe" and not name.endswith(", routes")
}
MEASURED = LAYOUTS | ADAPTED | ON_GPUS
# cases that change the batch: what is done to every rollout
PREPARED = {
    "token mean, entropies, DAPO with ERC": lambda r: replace(r, old_entropy=_numbers(r, 4.2, 0.4)),
    "constant length, advantages of tokens, SSPO": lambda r: replace(r, token_advantages=_numbers(r, 0.0, 1.0)),
    "token mean, π_old of the engine, CISPO, penalties": lambda r: replace(r, old_log_probs=r.rollout_log_probs),
}
FEW_CASES = ("GRPO", "SSPO AtanLog", "SSPO, penalties, correction")


def cases_of(name: str) -> list[str]:
    """Returns the cases that a layout is measured with, for a reference those of the layouts that need it."""
    every = any(one.every_objective for key, one in MEASURED.items() if name in (key, one.reference))
    return [case for case in cases() if every or case in FEW_CASES]


OTHERS = [name for name, layout in LAYOUTS.items() if name != layout.reference]


def cases() -> dict[str, tuple[Any, Penalties, Correction]]:
    """Returns every row of the table of objectives, and one case with penalties and correction."""
    gates = [Clip(0.2, 0.2), Sigmoid(), AtanLog(), SigLog(), ExpSig(), ExpAtan(), Gumbel()]
    table = {"GRPO": grpo(), "GSPO": gspo(), "GMPO": gmpo(), "SAPO": sapo()}
    table |= {f"SSPO {type(gate).__name__}": sspo(gate) for gate in gates}
    table["SSPO AtanLog, pessimistic"] = sspo(Pessimistic(AtanLog(), cap=3.0))
    found = {name: (objective, Penalties(), Correction()) for name, objective in table.items()}
    penalties = Penalties(kl_coef=0.1, kl_estimator="k2", entropy_coef=0.02)
    found |= {"SSPO, penalties, correction": (sspo(), penalties, Correction(mode="truncated"))}
    entropies, of_tokens, engine = PREPARED
    return found | {
        entropies: (erc(low=0.1, high=0.1), Penalties(), kpop()),
        of_tokens: (replace(sspo(), average=OverLength(16)), Penalties(), Correction()),
        engine: (cispo(1.2), penalties, Correction()),
        "other papers, token mean": (_Rows(_of_tokens(), OverTokens()), Penalties(), Correction()),
        "other papers": (_Rows(_of_sequences(), OverSequences()), Penalties(), Correction()),
    }


def _of_tokens() -> tuple[Any, ...]:
    first = (ce_gppo(), cispo(), aspo(), scopic(), spo(1.0), drpo(), dppo_tv(), dppo_kl(), dual_clip(), dapo(), vespo())
    return (*first, minpro(), dgpo(), maspo(), ipo(), cppo())


def _of_sequences() -> tuple[Any, ...]:
    return (pspo(), opsm(delta=0.0), rloo(), luspo(0.1, 0.1), gmpo_wide(), topr())


@dataclass(frozen=True)
class _Rows:
    """The sum of rows that are divided by the same number."""

    rows: tuple[Any, ...]
    average: Any

    def __call__(self, *arguments: Any) -> Sums:
        sums = [row(*arguments) for row in self.rows]
        return replace(sums[0], loss=torch.stack([one.loss for one in sums]).sum())


def _numbers(rollout: Any, mean: float, scale: float) -> Any:
    """Returns numbers for the tokens of a rollout that are the same in every process."""
    generator = torch.Generator().manual_seed(int(rollout.tokens.sum()))
    return (mean + scale * torch.randn(len(rollout.tokens), generator=generator)).numpy()


def read(path: Path) -> dict[str, Any]:
    return torch.load(path)


def measure(name: str, folder: Path, batch_file: Path, results: Path) -> dict[str, Any]:
    """Measures the quantities that no layout may change. A collective."""
    import tiny_policy
    import torch.distributed as dist
    from megatron.core import parallel_state
    from tiny_policy import make_run, read_batch

    from megatron_sspo.policy.distributed import initialize
    from megatron_sspo.policy.metrics import update_metrics, weights_by_sequence
    from megatron_sspo.policy.policy import Policy

    layout = MEASURED[name]
    device = initialize(layout.parallel, seed=0)
    run = make_run(
        layout.parallel,
        tokens=layout.tokens,
        dtype=layout.dtype,
        megatron=layout.megatron,
        ddp=layout.ddp,
        optimizer=replace(tiny_policy.OPTIMIZER, full_rate_ess=1.0),
        share_prompts=True if layout.series and layout.parallel.context == 1 else None,  # not the default on GPUs
        routing_replay="R2" if layout.batch == "routed" else "none",
        lora=tiny_policy.lora(layout.kind, folder) if layout.lora else None,
        teacher=None if layout.series else _teacher(layout.kind, folder),
    )
    policy = Policy(run, folder, device)
    shares, policy._schedule.share_prompts = policy._schedule.share_prompts, False
    (batch,) = policy.scatter([read_batch(batch_file)])

    def weights() -> dict[str, torch.Tensor]:
        return {name: tensor.cpu().clone() for name, tensor in policy.weights()}

    before = weights()
    parts_agree = _parts_agree(policy, before)
    noted = [r for group in policy.old_log_probs(batch) for r in group.rollouts]
    compared = {case: _gradient(policy, batch, case, results / layout.reference) for case in cases_of(name)}
    taught = None
    if run.teacher:
        (with_teacher,) = policy.teacher_log_probs([batch])
        taught = _gradient(policy, with_teacher, "SSPO AtanLog", results / f"{layout.reference} taught")
        taught["log_probs"] = _of_teacher(with_teacher)
    shared = _with_shared_prompts(policy, read_batch(batch_file), results / layout.reference) if shares else None
    policy.transformer.moe_router_bias_update_rate = 0.01  # of routers with a bias, in whole updates alone
    records = [policy.update(batch, sspo()) for _ in range(3)]
    found = {
        "before": before,
        "parts_agree": parts_agree,
        "old_log_probs": [r.old_log_probs.tolist() for r in noted],
        "routes": [None if r.routes is None else r.routes.tolist() for r in noted],
        "gradients": compared,
        "taught": taught,
        "shared": shared,
        "steps": [(record.loss, record.grad_norm, record.learning_rate) for record in records],
        "after": weights(),
    }
    if dist.get_rank() == 0:  # which alone has the values of tokens
        lengths = [r.num_response_tokens for r in noted]
        found["updates"] = [update_metrics(record) for record in records]
        found["weights"] = [(s, t.tolist()) for s, t in weights_by_sequence(records[-1], lengths)]
    held = {i: (found["old_log_probs"][i], found["routes"][i]) for i, r in enumerate(noted) if not r.is_outline}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (_digest(found), held))
    digests, (of_rank_0, *others) = zip(*everyone, strict=True)
    found["ranks_agree"] = (
        len(set(digests)) == 1
        and len(of_rank_0) == len(noted)
        and all(of_rank_0[i] == values for of_rank in others for i, values in of_rank.items())
    )
    parallel_state.destroy_model_parallel()
    return found


@patch.object(plan, "masked_pairs", lambda length: 0)  # sharing pays in every layout, however short the sequences are
def _with_shared_prompts(policy: Any, batch: Any, reference: Path) -> dict[str, Any]:
    """Measures the same policy with rows that share prompts. A collective."""
    import torch.distributed as dist

    policy._schedule.share_prompts = True
    (batch,) = policy.scatter([batch])
    rows = policy._schedule.rank_batch(batch).microbatches
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, sum(row.pieces is not None for row in rows))
    noted = [r for group in policy.old_log_probs(batch) for r in group.rollouts]
    compared = {case: _gradient(policy, batch, case, reference) for case in FEW_CASES}
    taught = _of_teacher(policy.teacher_log_probs([batch])[0]) if policy.run.teacher else None
    policy._schedule.share_prompts = False
    return {
        "taught": taught,
        "rows": sum(sizes),
        "old_log_probs": [r.old_log_probs.tolist() for r in noted],
        "routes": [None if r.routes is None else r.routes.tolist() for r in noted],
        "gradients": compared,
    }


def _teacher(kind: str, folder: Path) -> Teacher:
    """Returns a teacher of another architecture than the policy's; one without experts where tensor ranks may be.

    That of "moe" adds a divergence over its likeliest tokens to the loss, and others a term to the advantages.
    """
    other = "glm4" if kind == "moe" else "tied" if kind == "dense" else "dense"
    top: dict[str, Any] = {"top_k": 5, "beta": 0.5} if kind == "moe" else {}
    return Teacher(path=str(folder.with_name(other)), coef=0.3, reward_weight=0.5, **top)


def _of_teacher(batch: Any) -> list[list[float]]:
    return [rollout.teacher_log_probs.tolist() for group in batch for rollout in group.rollouts]


def _parts_agree(policy: Any, expected: Mapping[str, torch.Tensor]) -> bool:
    """Returns whether every way to gather gives every weight once, to the bit, and to the ranks that it names."""
    import torch.distributed as dist

    rank, gather = dist.get_rank(), policy.weights()
    stream = gather.at_rank_0(bucket_bytes=9_000)
    at_rank_0 = [(name, torch.equal(tensor.cpu(), expected[name])) for name, tensor in stream]
    agree = at_rank_0 == [(name, True) for name in expected if rank == 0]
    for most in (1, 2, 8):
        found, ranks = [], set()
        for part in gather.parts(max_collectors=most, bucket_bytes=9_000):
            ranks.add(part.rank)
            agree &= (part.tensors is not None) == (part.rank == rank)
            tensors = part.tensors or ()
            agree &= not tensors or list(part.entries) == [(n, tuple(t.shape), t.dtype) for n, t in tensors]
            for name, tensor in tensors:
                found.append((name, torch.equal(tensor.cpu(), expected[name])))
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        agree &= sorted(pair for of_rank in everyone for pair in of_rank) == sorted((n, True) for n in expected)
        agree &= sorted(ranks) == gather.collectors(max_collectors=most) and len(ranks) <= most
    return agree


def _gradient(policy: Any, batch: Any, case: str, reference: Path) -> dict[str, Any]:
    """Returns the distance of loss and gradient from the reference's; the first call with this case is the reference.

    The loss is in units of the mean |Â|, the gradient of each tensor relative to its size: see `sizes`.
    """
    objective, penalties, correction = cases()[case]
    original = policy.run
    policy.run = replace(policy.run, penalties=penalties, correction=correction)
    if prepare := PREPARED.get(case):
        batch = [replace(group, rollouts=[*map(prepare, group.rollouts)]) for group in batch]
    record = policy.gradient(batch, objective)
    policy.run = original
    gradients = gather_gradients(policy)
    path = reference.with_name(f"{reference.name} {case}.gradient")
    if not path.exists():
        torch.save((record.loss, gradients), path)
        return {"loss": 0.0, "gradient": 0.0, "tensor": "", "whole": 0.0}
    loss, expected = torch.load(path)
    size = sizes(expected)
    differences = {name: float((gradients[name] - tensor).norm()) / size[name] for name, tensor in expected.items()}
    worst = max(differences, key=differences.__getitem__)
    norms = [torch.cat([each[name].double().flatten() for name in expected]) for each in (gradients, expected)]
    whole = float((norms[0] - norms[1]).norm() / norms[1].norm())
    advantages = [abs(rollout.advantage) for group in batch for rollout in group.rollouts]
    mean = sum(advantages) / len(advantages)
    loss = abs(record.loss - loss) / mean
    return {"loss": loss, "gradient": differences[worst], "tensor": worst, "whole": whole}


def sizes(gradients: dict[str, torch.Tensor]) -> dict[str, float]:
    """Returns the norm of each tensor, or half of the median norm of its kind in all layers if that is more.

    The gradient of an expert with few tokens may be a tenth of its siblings'. Relative to its own norm the rounding was
    4e-6 on one processor and 1e-5 on another.
    """
    norms = {name: float(tensor.norm()) for name, tensor in gradients.items()}
    kinds: dict[str, list[float]] = {}
    for name, norm in norms.items():
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(norm)
    medians = {kind: statistics.median(found) for kind, found in kinds.items()}
    return {name: max(norm, medians[re.sub(r"\d+", "*", name)] / 2, 1e-12) for name, norm in norms.items()}


def gather_gradients(policy: Any) -> dict[str, torch.Tensor]:
    """Returns the whole gradient under Hugging Face names, unsharded, on every rank."""
    import torch.distributed as dist

    from megatron_sspo.policy.names import logical_parameters
    from megatron_sspo.policy.weights import shard_of
    from megatron_sspo.weights.gather import GatherPlan

    for chunk in policy.chunks:
        for buffer in chunk.buffers + chunk.expert_parallel_buffers:
            group = buffer.data_parallel_group
            for bucket in buffer.buckets if policy.ddp.use_distributed_optimizer else ():
                own = bucket.grad_data.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()
                dist.all_gather_into_tensor(bucket.grad_data, own, group=group)
    if policy.adapters:
        gather = policy.adapters.gather_plan()
        gather.parameters = {name: parameter.main_grad for name, parameter in gather.parameters.items()}
        return {name: tensor.cpu().clone() for name, tensor in gather}
    rows = {row.name: row for row in policy.rows if row.dtype is None}  # without buffers
    gradients: dict[str, torch.Tensor] = {}
    modules = [chunk.module for chunk in policy.chunks]
    for name, parameter in logical_parameters([getattr(module, "module", module) for module in modules]):
        if name in rows:
            gradients.setdefault(name, parameter.main_grad)
    gather = GatherPlan(list(rows.values()), gradients, {name: shard_of(rows[name]) for name in gradients})
    return {name: tensor.cpu().clone() for name, tensor in gather}


def _digest(found: dict[str, Any]) -> str:
    digest = hashlib.sha256(repr((found["steps"], found["parts_agree"])).encode())
    for weights in (found["before"], found["after"]):
        for name, tensor in weights.items():
            digest.update(name.encode() + tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def portions(num_processes: int, wanted: Collection[str], at_once: int = 10) -> list[list[str]]:
    """Returns the wanted layouts of `num_processes` processes and their references, `at_once` at a time.

    Groups that Megatron has made stay, because DDP's hooks hold the model and the model holds its groups. Each gloo
    group has threads that poll: after some thirty layouts a process would have more than a thousand of them.
    """
    wanted = MEASURED.keys() & wanted  # tests of other things have parameters of that name, too
    needed = {*wanted, *(MEASURED[name].reference for name in wanted)}
    names = [n for n, layout in MEASURED.items() if n in needed and layout.parallel.num_processes == num_processes]
    return [names[first : first + at_once] for first in range(0, len(names), at_once)]


def main(folders: Path, batches: Path, results: Path, *names: str) -> None:
    import torch.distributed as dist
    from launcher import join

    join()
    for name in names:
        layout = MEASURED[name]
        print(f"layout {name}", flush=True)
        found = measure(name, folders / layout.kind, batches / f"{layout.kind} {layout.batch}.npz", results)
        if dist.get_rank() == 0:
            torch.save(found, results / f"{name}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
