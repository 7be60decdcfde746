"""`Run`: the whole configuration of a training run, as frozen dataclasses.

A recipe is a Python function that returns a `Run`. Nothing here imports torch's heavy neighbours, so a recipe loads in
a moment and a wrong value is found before a GPU is touched.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from megatron_sspo.errors import UserError
from megatron_sspo.objective import Correction, Penalties, SequenceObjective, sspo
from megatron_sspo.rollout.engine import Sampling


@dataclass(frozen=True, kw_only=True)
class Model:
    """The policy that is trained."""

    path: str  # a Hugging Face folder: config.json, tokenizer and, unless init is "random", safetensors
    init: Literal["pretrained", "random"] = "pretrained"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of parameters and activations; gradients add up in float32


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The layout. The number of processes is data × tensor × pipeline × context; experts are cut inside of these."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1  # model chunks a pipeline stage (interleaved schedule above 1)
    context: int = 1  # ranks that share each sequence
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False  # sequence parallelism; Megatron wants it for experts under tensor parallelism

    @property
    def num_processes(self) -> int:
        """The world size that this layout fills."""
        return self.data * self.tensor * self.pipeline * self.context


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Where the prompts come from and how a row becomes tokens."""

    source: str  # a .jsonl or .parquet file, a file of megatron_sspo/data, or package.module:attribute
    options: Mapping[str, Any] = field(default_factory=dict)  # the source's own: split, field names, seed
    template: str = "chat"  # the tokenizer's chat template, or a format string with {question}
    system: str = ""  # system message of the chat template
    max_tokens: int = 1024
    overlong: Literal["error", "drop"] = "error"  # what a prompt of more than max_tokens is
    without: tuple["Prompts", ...] = ()  # sets whose questions are left out of this one: those to evaluate on


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Who generates, how much, and how."""

    engine: str = "embedded"  # a file of megatron_sspo/rollout, or package.module:attribute
    options: Mapping[str, Any] = field(default_factory=dict)  # the engine's own
    prompts_per_update: int = 16
    group_size: int = 8  # G, responses a prompt
    # updates that a rollout's weights may lag behind those that its cycle starts from: 0 generates, then trains;
    # k × updates_per_sync generates k cycles ahead, while the trainer works
    max_staleness: int = 0
    refills: int = 0  # how often groups whose rewards are all equal are replaced by groups of new prompts
    oversampling: float = 1.0  # prompts begun for one that is needed; the slowest are given up, and begun again later
    overlong_buffer: int = 0  # a penalty grows over the last so many of sampling.max_tokens; 0: none
    overlong_penalty: float = 1.0  # at sampling.max_tokens
    sampling: Sampling = field(default_factory=Sampling)
    environment: str = ""  # a file of megatron_sspo/environment, or package.module:attribute; "": a single turn
    environment_options: Mapping[str, Any] = field(default_factory=dict)  # the environment's own


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Adam with decoupled weight decay, by Megatron's distributed optimizer."""

    lr: float = 1e-6
    min_lr: float = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: int = 0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_grad: float = 1.0  # global norm; 0 does not clip


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Supervised learning on the prompts' demonstrations, before the first rollout."""

    prompts: Prompts
    updates: int
    batch_size: int
    optimizer: Optimizer


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A set to evaluate on, and how its answers are had and judged."""

    prompts: Prompts
    title: str = ""  # of its column in a table; "": its name
    reward: str = ""  # a file of megatron_sspo/reward, or package.module:attribute; "": the run's
    reward_options: Mapping[str, Any] = field(default_factory=dict)  # {}: the run's, where the reward is the run's
    environment: str | None = None  # a file of megatron_sspo/environment; "": a single turn; None: that of the rollouts
    environment_options: Mapping[str, Any] = field(default_factory=dict)  # {}: the rollouts', as for the reward
    max_tokens: int = 0  # of a response; 0: rollouts.sampling.max_tokens


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Held-out sets by name, answered greedily before the first update, every n-th, and at the end."""

    sets: Mapping[str, HeldOut]
    every: int = 0  # updates; 0 evaluates before and after only
    samples: int = 0  # k > 0 adds k sampled answers a prompt, by rollouts.sampling: avg@k, pass@k


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = False
    wandb_project: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a training run is. `megatron-sspo train RECIPE --set field.field=value` changes any of it."""

    name: str
    model: Model
    prompts: Prompts
    num_updates: int  # optimizer steps
    output: str = "runs"  # the run's folder is output/name
    seed: int = 0
    parallel: Parallel = Parallel()
    rollouts: Rollouts = Rollouts()
    reward: str = "math"  # a file of megatron_sspo/reward, or package.module:attribute
    reward_options: Mapping[str, Any] = field(default_factory=dict)
    advantage: str = "group_relative"  # a function of megatron_sspo.objective.advantages, or package.module:attribute
    objective: SequenceObjective = field(default_factory=sspo)
    penalties: Penalties = field(default_factory=Penalties)
    correction: Correction = field(default_factory=Correction)
    updates_per_sync: int = 2  # the paper's μ: optimizer steps between refreshes of the sampler
    tokens_per_microbatch: int = 16384
    routing_replay: Literal["none", "R2", "R3"] = "none"  # experts as in the pass of π_old (R2), as in the engine (R3)
    optimizer: Optimizer = Optimizer()
    warm_start: WarmStart | None = None
    evaluation: Evaluation | None = None
    checkpoint_every: int = 0  # updates; 0 keeps only the finished model
    checkpoints_kept: int = 2
    checkpoint_in_background: bool = False  # written while the trainer goes on, from a copy in the host's memory
    distributed_timeout: float = 1800.0  # seconds without progress on any rank after which the run ends as hung
    stop_timeout: float = 30.0  # seconds within which a run that hangs ends after SIGTERM
    check_memory: bool = True  # refuse to start where a rank is estimated to need more than it has
    tracking: Tracking = Tracking()
    # fields of Megatron's TransformerConfig and of its DistributedDataParallelConfig, by their own names
    megatron: Mapping[str, Any] = field(default_factory=dict)
    ddp: Mapping[str, Any] = field(default_factory=dict)


def check(run: Run) -> Run:
    """Finds what contradicts itself before anything is started.

    Raises:
        UserError: one sentence: the field, its value, the remedy.
    """
    _check_numbers(run)
    if run.name in ("", "..") or Path(run.name).name != run.name:
        raise UserError(f"name is {run.name!r}: it has to be the plain name of a folder, which is made in `output`")
    _check_rollouts(run)
    if run.evaluation:
        _check_sets(run.evaluation.sets)
    if run.penalties.kl_coef > 0 and run.warm_start:
        raise UserError(
            "penalties.kl_coef is above 0 in a run with a warm start, and the penalty is taken to the weights that a "
            "run starts from: warm-start in a run of its own, and start this one from its model folder"
        )
    return _check_layout(run)


def _check_numbers(run: Run) -> None:
    rollouts, warm_start, evaluation = run.rollouts, run.warm_start, run.evaluation
    sets = evaluation.sets if evaluation else {}
    positive = {
        "num_updates": run.num_updates,
        "updates_per_sync": run.updates_per_sync,
        "tokens_per_microbatch": run.tokens_per_microbatch,
        "rollouts.prompts_per_update": rollouts.prompts_per_update,
        "rollouts.sampling.max_tokens": rollouts.sampling.max_tokens,
        "checkpoints_kept": run.checkpoints_kept,
        "warm_start.updates": warm_start.updates if warm_start else 1,
        "warm_start.batch_size": warm_start.batch_size if warm_start else 1,
        **{f"parallel.{name}": getattr(run.parallel, name) for name in _SIZES},
    }
    for name, value in positive.items():
        if value < 1:
            raise UserError(f"{name} is {value}: it has to be 1 or more")
    not_negative = {
        "seed": run.seed,
        "rollouts.max_staleness": rollouts.max_staleness,
        "rollouts.refills": rollouts.refills,
        "rollouts.overlong_buffer": rollouts.overlong_buffer,
        "rollouts.overlong_penalty": rollouts.overlong_penalty,
        "checkpoint_every": run.checkpoint_every,
        "distributed_timeout": run.distributed_timeout,
        "stop_timeout": run.stop_timeout,
        "evaluation.every": evaluation.every if evaluation else 0,
        "evaluation.samples": evaluation.samples if evaluation else 0,
        **{f"evaluation.sets.{name}.max_tokens": held_out.max_tokens for name, held_out in sets.items()},
        **{f"optimizer.{name}": getattr(run.optimizer, name) for name in ("lr", "warmup_updates", "clip_grad")},
    }
    for name, value in not_negative.items():
        if value < 0:
            raise UserError(f"{name} is {value}: it has to be 0 or more")


def _check_sets(sets: Mapping[str, HeldOut]) -> None:
    if not sets:
        raise UserError(
            'evaluation.sets is empty: name a set, {"gsm8k": HeldOut(prompts=...)}, or leave evaluation out'
        )
    for name in sets:
        if not re.fullmatch(r"[\w-]+", name):
            raise UserError(f"evaluation.sets has the name {name!r}: letters, digits, - and _ make a name")


def _check_rollouts(run: Run) -> None:
    rollouts = run.rollouts
    if rollouts.group_size < 2:
        raise UserError(
            f"rollouts.group_size is {rollouts.group_size}: an advantage within a group needs at least 2 responses"
        )
    if rollouts.sampling.temperature <= 0:
        raise UserError(
            f"rollouts.sampling.temperature is {rollouts.sampling.temperature}: training needs sampled responses, "
            "so set it above 0 (evaluation is greedy by itself)"
        )
    if 0 < rollouts.max_staleness < run.updates_per_sync:
        raise UserError(
            f"rollouts.max_staleness is {rollouts.max_staleness} and updates_per_sync {run.updates_per_sync}: a cycle "
            f"that is begun early lags behind by {run.updates_per_sync}, so set it to 0 or to that at least"
        )
    if rollouts.oversampling < 1:
        raise UserError(f"rollouts.oversampling is {rollouts.oversampling}: it has to be 1 or more")
    if rollouts.overlong_buffer > rollouts.sampling.max_tokens:
        raise UserError(
            f"rollouts.overlong_buffer is {rollouts.overlong_buffer}, more than rollouts.sampling.max_tokens="
            f"{rollouts.sampling.max_tokens}: every response would be punished"
        )
    if not 0 < rollouts.sampling.top_p <= 1:
        raise UserError(f"rollouts.sampling.top_p is {rollouts.sampling.top_p}: it has to lie in (0, 1]")
    if rollouts.environment and run.prompts.template != "chat":
        raise UserError(
            f"rollouts.environment is {rollouts.environment!r} and prompts.template {run.prompts.template!r}: "
            "observations are messages of the tokenizer's chat template, so set prompts.template to 'chat'"
        )
    longest = run.prompts.max_tokens + rollouts.sampling.max_tokens
    if longest > run.tokens_per_microbatch:
        raise UserError(
            f"a sequence may have {longest} tokens (prompts.max_tokens + rollouts.sampling.max_tokens), more than "
            f"tokens_per_microbatch={run.tokens_per_microbatch}: raise the one or lower the others"
        )


_SIZES = ("data", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")


def _check_layout(run: Run) -> Run:
    parallel = run.parallel
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        raise UserError("parallel.virtual_pipeline is above 1 with parallel.pipeline=1: interleaving needs a pipeline")
    if parallel.sequence and parallel.tensor == 1:
        raise UserError("parallel.sequence is on with parallel.tensor=1: sequence parallelism shares out tensor ranks")
    experts = parallel.expert * parallel.expert_tensor
    shared_by = parallel.data * parallel.tensor * parallel.context
    if shared_by % experts:
        raise UserError(
            f"parallel.expert × parallel.expert_tensor = {experts} does not divide data × tensor × context = "
            f"{shared_by}"
        )
    return run
