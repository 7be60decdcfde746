"""`Run`: the whole configuration of a training run, as frozen dataclasses.

A recipe is a Python function that returns a `Run`. A field's annotation gives its kind and range: see
`config/kinds.py`. `check` compares every value with it. Nothing here imports Megatron or SGLang, so a recipe loads
fast and a wrong value is found before a GPU is touched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from megatron_sspo.config.kinds import (
    Amount,
    AsTuple,
    AtLeastOne,
    Count,
    Decay,
    Fields,
    FilePath,
    FolderName,
    GroupSize,
    Line,
    MaybePath,
    MaybePlugin,
    NotNegative,
    Options,
    Plugin,
    PluginOptions,
    Positive,
    SetName,
    Share,
    Text,
    Timeout,
)
from megatron_sspo.config.naming import describe_value
from megatron_sspo.config.objectives import CheckedObjective
from megatron_sspo.config.validate import validate
from megatron_sspo.errors import UserError
from megatron_sspo.objective import Correction, Penalties, sspo
from megatron_sspo.objective.average import OverSequences, average_of
from megatron_sspo.objective.inputs import needs_of
from megatron_sspo.types import Endpoint, Sampling

_LOWEST_TEMPERATURE = 1e-6  # SGLang decodes greedily below it, and logits over it fit into float32


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model of the policy that is trained."""

    path: FilePath  # a Hugging Face folder: config.json, tokenizer and, unless init is "random", safetensors
    init: Literal["pretrained", "random"] = "pretrained"  # the folder's weights, or weights drawn by the seed
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of parameters and activations; gradients are summed in float32


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The parallel layout: data × tensor × pipeline × context ranks; experts are sharded over these same ranks."""

    data: Count = 1  # data-parallel ranks, which share each batch
    tensor: Count = 1  # tensor-parallel ranks, which share each matrix outside of experts
    pipeline: Count = 1  # pipeline stages of layers
    virtual_pipeline: Count = 1  # model chunks per pipeline stage (interleaved schedule above 1)
    context: Count = 1  # context-parallel ranks, which share each sequence
    expert: Count = 1  # expert-parallel ranks, which share the experts of a layer
    expert_tensor: Count = 1  # tensor-parallel ranks of experts, which share each matrix of an expert
    sequence: bool = False  # whether sequence parallelism is on; Megatron requires it for experts with tensor > 1

    @property
    def num_processes(self) -> int:
        """The world size of this layout."""
        return self.data * self.tensor * self.pipeline * self.context

    def describe(self) -> str:
        """Returns the sizes above 1: "data 2, expert 2"; for a single process "one process"."""
        sizes = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "sequence"}
        parts = [f"{name.replace('_', ' ')} {size}" for name, size in sizes.items() if size > 1]
        return ", ".join([*parts, *(["sequence"] if self.sequence else [])]) or "one process"


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """A set of prompts: its source, and how a row becomes tokens."""

    source: Plugin  # a .jsonl or .parquet file, a file of megatron_sspo/data/sources, or package.module:attribute
    options: Options = field(default_factory=dict)  # the source's own: split, field names, seed
    template: Text = "chat"  # the tokenizer's chat template, or a format string with {question}
    system: Text = ""  # system message of the chat template, for rows without one of their own
    max_tokens: Count = 1024  # the largest number of tokens of a prompt
    overlong: Literal["error", "drop"] = "error"  # what happens to a prompt of more than max_tokens
    shuffle: bool = True  # whether training draws each epoch in another order; False: in the order of the source
    without: Annotated[
        tuple["Prompts", ...], AsTuple
    ] = ()  # sets whose questions are left out of this one, such as the evaluation sets


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The rollouts: the engine, the number of responses, the sampling, the environment."""

    engine: Plugin = "embedded"  # a file of megatron_sspo/rollout/engines, or package.module:attribute
    options: Options = field(default_factory=dict)  # the engine's own
    prompts_per_update: Count = 16  # groups of an optimizer step; a step has prompts_per_update × group_size responses
    group_size: GroupSize = 8  # G, responses per prompt
    # the updates that a rollout's weights may lag behind the weights at the start of its cycle: 0 generates, then
    # trains; k × updates_per_sync generates k cycles ahead, while the trainer works
    max_staleness: Amount = 0
    refills: Amount = 0  # how often groups whose rewards are all equal are replaced by groups of new prompts
    # with refills, groups with a smaller mean of the reward's part "answer" are replaced too
    min_pass_rate: Share = 0.0
    max_pass_rate: Share = 1.0  # and groups with a larger one
    # whether responses that were cut off at sampling.max_tokens get the advantage 0; they count in their group's
    # baseline, in the average of the objective and in penalties
    mask_truncated: bool = False
    # prompts started per prompt needed; the slowest are cancelled, and started again in a later cycle
    oversampling: AtLeastOne = 1.0
    overlong_buffer: Amount = 0  # a penalty grows over the last overlong_buffer tokens of max_tokens; 0: no penalty
    overlong_penalty: NotNegative = 1.0  # the penalty at sampling.max_tokens
    sampling: Sampling = field(default_factory=Sampling)  # how tokens are drawn, and how many
    environment: MaybePlugin = ""  # a file of megatron_sspo/environment, or package.module:attribute; "": a single turn
    environment_options: Options = field(default_factory=dict)  # the environment's own
    agent: MaybePlugin = ""  # a file of megatron_sspo/agent, or package.module:attribute; "": no agent
    agent_options: Options = field(default_factory=dict)  # the agent's own
    endpoint: Endpoint = field(default_factory=Endpoint)  # what answers the agent

    @property
    def takes_turns(self) -> bool:
        """True if servers release their memory on the trainer's GPUs while it works, and the trainer its gradients'."""
        return bool(self.options.get("release_memory"))


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Adam with decoupled weight decay, by Megatron's distributed optimizer."""

    lr: NotNegative = 1e-6  # the learning rate after the warm-up
    min_lr: NotNegative = 0.0  # the learning rate of the last update of a linear or cosine schedule; 0: just above it
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate, over all updates
    warmup_updates: Amount = 0  # updates over which the learning rate rises linearly
    weight_decay: NotNegative = 0.0  # decoupled, as in AdamW
    beta1: Decay = 0.9  # decay of Adam's first moment
    beta2: Decay = 0.999  # decay of Adam's second moment
    eps: Positive = 1e-8  # added to the root of Adam's second moment
    clip_grad: NotNegative = 1.0  # the largest global norm; 0 does not clip
    # above 0: where the effective sample size of the batch's sequences is a smaller share of them, the learning rate is
    # multiplied by the root of their quotient; 1.0 is VCPO's rule
    full_rate_ess: Share = 0.0
    # above 0: where KL(π_old ‖ π_θ) per token is larger, the learning rate is multiplied by the root of their quotient
    full_rate_kl: NotNegative = 0.0
    offload: Share = 0.0  # the share of the float32 masters and of Adam's moments that are in host memory, 0 to 1


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters, which are trained in place of the weights."""

    rank: Count = 16  # r: the width of an adapter
    alpha: Positive = 32.0  # α: an adapter is added with the factor α / r
    # the layers with adapters; the model's other weights stay as they are
    targets: Annotated[tuple[Literal["attention", "mlp", "experts"], ...], AsTuple] = ("attention",)
    path: FilePath | None = None  # a PEFT folder to start from; None: adapters that add nothing at first


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """On-policy distillation: Â_it becomes reward_weight · Â_it + coef · (log p_teacher(y_it) − log π_old(y_it)).

    Both log-probs are those of `rollouts.sampling.temperature`. Averaged over responses, the second term's gradient is
    that of the reverse KL, KL(π_θ ‖ p_teacher), to the next token. With `top_k` the divergence itself takes the place
    of the second term: coef · D(p_teacher, π_θ) of each token is added to the loss.
    """

    # a Hugging Face folder with the model's vocabulary, which the ranks hold in the run's layout and dtype; "": urls
    path: MaybePath = ""
    # options of an SGLang server that is started for path, by their own names, {"tp_size": 2}; None: the ranks hold it
    server: Options | None = None
    # SGLang servers that have the teacher already; their key is in MEGATRON_SSPO_SERVER_KEY
    urls: Annotated[tuple[Line, ...], AsTuple] = ()
    coef: Positive = 1.0  # of the teacher's term
    # D is a divergence over so many of the teacher's likeliest tokens and the others as one; 0: the sampled token alone
    top_k: Amount = 0
    # of D = β KL(p‖m) + (1 − β) KL(π_θ‖m), m = β p + (1 − β) π_θ, GKD's generalized Jensen-Shannon divergence; 0 is the
    # forward KL(p‖π_θ), and 1 the reverse KL(π_θ‖p), the only one without top_k
    beta: Share = 1.0
    reward_weight: NotNegative = 1.0  # of the reward's advantage; 0: from the teacher alone

    @property
    def is_served(self) -> bool:
        """True if SGLang servers have the teacher, and not the ranks."""
        return bool(self.urls) or self.server is not None


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Supervised learning on the prompts' demonstrations, before the first rollout."""

    prompts: Prompts  # a set whose rows have demonstrations
    updates: Count  # optimizer steps
    batch_size: Count  # demonstrations of an optimizer step
    optimizer: Optimizer  # of the warm start, with the offload of Run.optimizer, which replaces it afterwards


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A set to evaluate on: its prompts, its reward and its environment."""

    prompts: Prompts  # the questions
    title: Line = ""  # the title of its column in a table; "": its name
    reward: MaybePlugin = ""  # a file of megatron_sspo/reward, or package.module:attribute; "": the run's
    reward_options: Options = field(default_factory=dict)  # {}: the run's, if the reward is the run's
    # a file of megatron_sspo/environment, or package.module:attribute; "": a single turn; None: the rollouts' own
    environment: MaybePlugin | None = None
    environment_options: Options = field(default_factory=dict)  # {}: the rollouts', if the environment is the rollouts'
    max_tokens: Amount = 0  # response tokens; 0: rollouts.sampling.max_tokens


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation: greedy answers to held-out sets before the first update, every n updates, and at the end."""

    sets: Annotated[
        Mapping[SetName, HeldOut],
        Field(
            min_length=1,
            description='a dict of one set or more, {"gsm8k": HeldOut(prompts=...)}; without any, leave evaluation out',
        ),
    ]  # by the names that the metrics have
    every: Amount = 0  # updates; 0 evaluates before and after only
    samples: Amount = 0  # k > 0 adds k answers per prompt sampled with rollouts.sampling: avg@k, pass@k


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """The trackers that receive the metrics in addition to metrics.jsonl."""

    tensorboard: bool = False  # event files in the run's folder
    wandb_project: Line = ""  # a project of Weights & Biases; "": none
    # others by name, a file of megatron_sspo/trackers or package.module:attribute, each with its options:
    # {"mlflow": {"experiment": "x"}}, {"swanlab": {"project": "x"}}, {"trackio": {"project": "x"}}
    others: PluginOptions = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The configuration of a training run. `megatron-sspo train RECIPE --set field.field=value` overrides a field."""

    name: FolderName  # of the run and its folder
    model: Model  # the model that is trained
    prompts: Prompts  # the questions that it is trained on
    num_updates: Count  # optimizer steps
    output: FilePath = "runs"  # the run's folder is output/name
    seed: Amount = 0  # of the order of prompts, of sampling and of random weights
    parallel: Parallel = Parallel()  # the layout of the trainer's processes
    layouts: Annotated[
        Mapping[Count, Parallel],
        Field(description="a dict of layouts by their numbers of processes, {8: Parallel(data=8)}"),
    ] = field(default_factory=dict)  # the layouts for other numbers of processes than that of parallel
    rollouts: Rollouts = Rollouts()  # how responses are generated
    reward: Plugin = "math"  # a file of megatron_sspo/reward, or package.module:attribute
    reward_options: Options = field(default_factory=dict)  # the reward's own
    # a function of megatron_sspo.objective.advantages, or package.module:attribute
    advantage: Plugin = "group_relative"
    objective: CheckedObjective = field(default_factory=sspo)  # what is maximized
    penalties: Penalties = field(default_factory=Penalties)  # KL and entropy terms of the loss
    # β: each reward has a part "kl", −β · Σ_t (log π_old − log π_ref) over the response; 0: none
    kl_in_reward: NotNegative = 0.0
    # updates after which the reference policy gets the current weights, again and again; 0: it has those of the start
    reference_every: Amount = 0
    teacher: Teacher | None = None  # a model to distil from, on the policy's own responses; None: the reward alone
    # π_old: "trainer" computes its log-probs before the updates of a cycle; "rollout" takes the engine's log-probs,
    # which saves that pass, and ρ then contains the mismatch and the staleness
    old_policy: Literal["trainer", "rollout"] = "trainer"
    correction: Correction = field(default_factory=Correction)  # of the mismatch between trainer and engine
    updates_per_sync: Count = 2  # the paper's μ: optimizer steps between two syncs of the engine's weights
    tokens_per_microbatch: Count = 16384  # the largest number of tokens of a forward pass, prompts included
    # whether the responses of a group share their prompt in a forward pass; None: on a CPU, and with Transformer Engine
    # without context parallelism, unless routers have losses
    share_prompts: bool | None = None
    routing_replay: Literal["none", "R2", "R3"] = "none"  # replays the experts of π_old's pass (R2), the engine (R3)
    optimizer: Optimizer = Optimizer()  # of the updates
    lora: LoRA | None = None  # adapters are trained in place of the weights; None: the weights
    warm_start: WarmStart | None = None  # supervised updates before the first rollout
    evaluation: Evaluation | None = None  # on held-out sets
    # updates between checkpoints; a warm start is saved as well. 0 saves only the last state, from which a finished run
    # resumes
    checkpoint_every: Amount = 0
    checkpoints_kept: Count = 2  # the number of checkpoints that are kept, the newest; older ones are removed
    checkpoint_in_background: bool = False  # whether training continues while a checkpoint is written, from a host copy
    distributed_timeout: Timeout = 1800.0  # seconds without progress of a rank after which it ends as hung
    check_memory: bool = True  # whether to refuse to start if a rank is estimated to need more memory than it has
    tracking: Tracking = field(default_factory=Tracking)  # TensorBoard, Weights & Biases, and others
    megatron: Fields = field(default_factory=dict)  # fields of Megatron's TransformerConfig, by their names there
    ddp: Fields = field(default_factory=dict)  # fields of Megatron's DistributedDataParallelConfig, by their names

    @property
    def held_teacher(self) -> str:
        """The path of the teacher that the ranks hold; "" without one."""
        return "" if self.teacher is None or self.teacher.is_served else self.teacher.path

    @property
    def needs_reference(self) -> bool:
        """True if log-probs of the reference policy are computed, for a KL or for the objective."""
        kl = self.penalties.kl_coef or self.kl_in_reward
        return kl > 0 or "reference_log_probs" in needs_of(self.objective)


def check(run: Run) -> Run:
    """Checks every value, and fields that contradict each other, before anything is started.

    Returns:
        The run, rebuilt from plain values: see `validate`.

    Raises:
        UserError: a value is wrong; the message names the field, its value and the remedy.
    """
    run = validate(run, Run)
    found = [
        *_contradictions_of_rollouts(run, run.rollouts),
        *(_contradictions_of_agent(run, run.rollouts) if run.rollouts.agent else ()),
        *_contradictions_of_layouts(run),
        *_contradictions_of_log_probs(run),
        *_contradictions_of_parameters(run),
        *_contradictions_of_reference(run),
    ]
    if found:
        raise UserError(found[0])
    if run.warm_start:
        check_reference(run)
    return run


def _contradictions_of_parameters(run: Run) -> Iterator[str]:
    if run.optimizer.offload and not run.ddp.get("use_distributed_optimizer", True):
        yield (
            f"optimizer.offload is {run.optimizer.offload} and ddp.use_distributed_optimizer is off: only the "
            "distributed optimizer's state is moved to the host, so leave one of them out"
        )
    if run.lora and (rate := run.megatron.get("moe_router_bias_update_rate")):
        yield (
            f"megatron.moe_router_bias_update_rate is {describe_value(rate)} with lora: an adapter has no biases of "
            "routers, so leave one of them out"
        )


def _contradictions_of_reference(run: Run) -> Iterator[str]:
    if run.reference_every and (run.lora or not run.needs_reference):
        reason = "with lora, whose reference is its base" if run.lora else "and nothing needs the reference policy"
        yield f"reference_every is {run.reference_every} {reason}: set it to 0"


def check_reference(run: Run) -> None:
    """Raises UserError if a run that is warm-started needs log-probs of the reference policy."""
    if run.needs_reference:
        raise UserError(
            f"{reason_for_reference(run)} in a run with a warm start, but the reference policy has the weights that a "
            "run starts from: warm-start in a run of its own, and start this one from its model folder"
        )


def reason_for_reference(run: Run) -> str:
    """Returns what a run needs the reference policy for."""
    users = {
        f"penalties.kl_coef is {run.penalties.kl_coef}": run.penalties.kl_coef,
        f"kl_in_reward is {run.kl_in_reward}": run.kl_in_reward,
    }
    return next(filter(users.get, users), "objective needs reference_log_probs")


def _contradictions_of_rollouts(run: Run, rollouts: Rollouts) -> Iterator[str]:
    sampling = rollouts.sampling
    if sampling.temperature < _LOWEST_TEMPERATURE:
        yield (
            f"rollouts.sampling.temperature is {sampling.temperature}: training needs sampled responses, so set it to "
            f"{_LOWEST_TEMPERATURE} or more (evaluation is greedy by itself)"
        )
    if 0 < rollouts.max_staleness < run.updates_per_sync:
        yield (
            f"rollouts.max_staleness is {rollouts.max_staleness} and updates_per_sync {run.updates_per_sync}: a cycle "
            f"that is begun early lags behind by {run.updates_per_sync}, so set it to 0 or to that at least"
        )
    if run.teacher and bool(run.teacher.path) == bool(run.teacher.urls):
        yield "teacher needs either path, a Hugging Face folder, or urls, servers that have the model: set one of them"
    if run.teacher and run.teacher.urls and run.teacher.server is not None:
        yield "teacher.server is for a server that is started with teacher.path: leave it out beside teacher.urls"
    if run.teacher and run.teacher.is_served and sampling.temperature != 1:
        yield (
            f"rollouts.sampling.temperature is {sampling.temperature}, and the log-probs that servers give a teacher's "
            "tokens are those of temperature 1: set it to 1, or name teacher.path alone, which the ranks then hold"
        )
    if run.teacher and run.teacher.beta != 1 and not run.teacher.top_k:
        yield (
            f"teacher.beta is {run.teacher.beta}, and the sampled token alone gives the reverse KL: set teacher.top_k "
            "to how many of the teacher's likeliest tokens are compared, such as 64"
        )
    if rollouts.refills and run.teacher:
        yield (
            f"rollouts.refills is {rollouts.refills}, which replaces groups of equal rewards, and teacher gives them a "
            "gradient: set rollouts.refills to 0"
        )
    if rollouts.mask_truncated and run.teacher:
        yield (
            "rollouts.mask_truncated is true, and teacher gives tokens of truncated responses an advantage: leave out "
            "one of them"
        )
    if rollouts.min_pass_rate > rollouts.max_pass_rate:
        yield (
            f"rollouts.min_pass_rate is {rollouts.min_pass_rate}, more than rollouts.max_pass_rate="
            f"{rollouts.max_pass_rate}: no group is between them, so lower it"
        )
    if rollouts.overlong_buffer > sampling.max_tokens:
        yield (
            f"rollouts.overlong_buffer is {rollouts.overlong_buffer}, more than rollouts.sampling.max_tokens="
            f"{sampling.max_tokens}: every response would be punished, so lower it"
        )
    for kind in ("environment", "agent"):
        options = getattr(rollouts, f"{kind}_options")
        if options and not getattr(rollouts, kind):
            yield (
                f"rollouts.{kind}_options is {describe_value(options)}, but rollouts.{kind} is '': name the {kind} "
                "that they are for, or leave them out"
            )
    if rollouts.environment and run.prompts.template != "chat":
        yield (
            f"rollouts.environment is {rollouts.environment!r} and prompts.template {run.prompts.template!r}: "
            "observations are messages of the tokenizer's chat template, so set prompts.template to 'chat'"
        )
    longest = run.prompts.max_tokens + sampling.max_tokens
    if longest > run.tokens_per_microbatch:
        yield (
            f"a sequence may have {longest} tokens (prompts.max_tokens + rollouts.sampling.max_tokens), more than "
            f"tokens_per_microbatch={run.tokens_per_microbatch}: raise the one or lower the others"
        )


def _contradictions_of_agent(run: Run, rollouts: Rollouts) -> Iterator[str]:
    """Yields what an episode of an agent, which may have several sequences, cannot have."""
    agent = f"with rollouts.agent={rollouts.agent!r}"
    if rollouts.environment:
        yield f"rollouts.environment is {rollouts.environment!r} {agent}: leave one of them out"
    if rollouts.endpoint.forced_turns == "observe" and rollouts.engine == "embedded":
        yield (
            "rollouts.endpoint.forced_turns is 'observe' with rollouts.engine='embedded', which samples no answers of "
            "a given form: choose the engine sglang, or leave forced_turns out"
        )
    if rollouts.overlong_buffer:
        yield (
            f"rollouts.overlong_buffer is {rollouts.overlong_buffer} {agent}: an episode has no single length, so set "
            "it to 0 and let the agent's reward punish length"
        )
    if run.penalties.kl_coef or run.penalties.entropy_coef:
        yield (
            f"penalties is {run.penalties} {agent}: penalties are sums over sequences, of which an episode may have "
            "several, so leave them out"
        )
    if run.kl_in_reward:
        yield (
            f"kl_in_reward is {run.kl_in_reward} {agent}: it is a sum over a sequence, of which an episode may have "
            "several, so leave it out"
        )
    if run.teacher and rollouts.endpoint.max_branches > 1:
        yield f"teacher is set {agent}: it scores single sequences, so set rollouts.endpoint.max_branches to 1"
    if rollouts.endpoint.max_branches > 1 and not isinstance(average_of(run.objective), OverSequences):
        yield (
            f"the objective's average is {average_of(run.objective)} {agent}: only a mean over sequences counts an "
            "episode with several branches once, so set rollouts.endpoint.max_branches to 1 or choose another objective"
        )


def _contradictions_of_layouts(run: Run) -> Iterator[str]:
    for place, in_layout in layouts_of(run).items():
        parallel = in_layout.parallel
        experts = parallel.expert * parallel.expert_tensor
        shared_by = parallel.data * parallel.tensor * parallel.context
        if shared_by % experts:
            yield (
                f"{place}.expert × {place}.expert_tensor = {experts} does not divide data × tensor × context = "
                f"{shared_by}: experts are sharded over these ranks, so change one of the sizes"
            )
    for size, parallel in run.layouts.items():
        if parallel.num_processes != size or (size == run.parallel.num_processes and parallel != run.parallel):
            yield (
                f"layouts[{size}] is a layout of {parallel.num_processes} processes ({parallel.describe()}), and "
                f"parallel one of {run.parallel.num_processes}: each number must be the key of one layout"
            )


def _contradictions_of_log_probs(run: Run) -> Iterator[str]:
    """Yields what compares log-probs of the engine, the trainer and π_old where there is nothing to compare."""
    if run.old_policy == "rollout":
        users = {
            f"correction.mode is {run.correction.mode!r}": run.correction.mode != "none",
            "routing_replay is 'R2'": run.routing_replay == "R2",
            "objective needs old_entropy": "old_entropy" in needs_of(run.objective),
        }
        for user in filter(users.get, users):
            yield (
                f"{user} and old_policy 'rollout': it needs the trainer's pass of π_old, which is left out, so set "
                "old_policy to 'trainer', or change the other"
            )
    users = {
        f"correction.mode is {run.correction.mode!r}": run.correction.mode != "none",
        "old_policy is 'rollout'": run.old_policy == "rollout",
        "the objective needs rollout_log_probs": "rollout_log_probs" in needs_of(run.objective),
    }
    if (cut_off := run.rollouts.sampling.cut_off) and any(users.values()):
        yield (
            f"rollouts.sampling.{cut_off} and {next(filter(users.get, users))}: the engine's distribution is cut off "
            "there and the trainer's is not, so their ratio is no mismatch; set top_p to 1, top_k to 0 and min_p to 0, "
            "or compare nothing with the engine"
        )


def layouts_of(run: Run) -> dict[str, Run]:
    """Returns the run in each of its layouts, by the field that has the layout."""
    others = {f"layouts[{size}]": replace(run, parallel=parallel) for size, parallel in run.layouts.items()}
    return {"parallel": run, **others}


def in_layout_for(run: Run, num_processes: int) -> Run:
    """Returns the run in its layout for so many processes. A run without `layouts` is returned as it is.

    Raises:
        UserError: the run has layouts, and none of them is for that number.
    """
    if not run.layouts or num_processes == run.parallel.num_processes:
        return run
    if num_processes not in run.layouts:
        sizes = ", ".join(map(str, sorted({run.parallel.num_processes, *run.layouts})))
        raise UserError(
            f"{num_processes} processes were started, and the recipe has layouts for {sizes}: add "
            f"layouts[{num_processes}], or change the launcher"
        )
    return replace(run, parallel=run.layouts[num_processes])
