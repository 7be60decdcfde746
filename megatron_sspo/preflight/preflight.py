"""Checks that need no process group; the launching process runs them in a few seconds."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.checkpoint.state import list_checkpoints
from megatron_sspo.config.resolve import check_plugin
from megatron_sspo.data.demonstration import demonstration
from megatron_sspo.data.fit import check_prompts_fit, check_vocabulary
from megatron_sspo.data.open import describe_sources, prompt_stream
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError
from megatron_sspo.evaluation.sets import check_held_out, held_out_streams
from megatron_sspo.preflight import resources
from megatron_sspo.reward.protocol import Reward, check_prompts
from megatron_sspo.rollout.advantages import check_advantage
from megatron_sspo.rollout.open_engine import check_engine
from megatron_sspo.rollout.open_episodes import check_episodes
from megatron_sspo.rollout.servers.process import find_python
from megatron_sspo.rollout.stopping import describe_end_of_turn
from megatron_sspo.run import Rollouts, Run, Teacher, layouts_of
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.run_folder.new import check_is_new, is_model
from megatron_sspo.run_folder.resuming import Resumable, check_resumable
from megatron_sspo.trackers.open import check as check_trackers
from megatron_sspo.weights.family import load_family, size
from megatron_sspo.weights.formats.open_folder import open_folder, read_config_of


def preflight(
    run: Run, *, resume: Path | None, elsewhere: bool = False, log: Callable[[str], None] = lambda line: None
) -> list[str]:
    """Checks a run before it starts: Megatron's fields, folders, data, plug-ins, and the machine.

    Every row of the data is read, and checked by its reward. On the machine, the disk and the servers are checked; on
    ranks that torchrun or srun has started, only rank 0 does this. `check_ranks` checks the memory of the ranks.

    Args:
        resume: the folder of the run to resume; None for a new run.
        elsewhere: whether the run is for other machines than this one.
        log: function that is called with each line about the data.

    Returns:
        A line for each field that differs from the configuration in the checkpoint of a resumed run.
    """
    model = Path(run.model.path)
    folder = resume or Path(run.output) / run.name
    config = resources.read_model_config(run)
    _check_layouts(run, config, elsewhere=elsewhere)
    checkpoint = _check_folder(run, folder, is_new=resume is None)
    check_trackers(run.tracking)
    tokenizer = load_tokenizer(model)
    reward = _check_plugins(run, tokenizer)
    left_out = _check_weights(model, config, run.model.init)
    if run.teacher and run.teacher.path:
        _check_teacher(run.teacher, tokenizer)
    lines = _check_data(run, config, tokenizer, reward, checkpoint)
    for line in filter(None, [left_out, describe_end_of_turn(model, tokenizer), *lines]):
        log(line)
    if os.environ.get("RANK", "0") == "0":
        resources.check_disk(run, config, folder)
        _check_servers(run.rollouts, elsewhere=elsewhere)
    return checkpoint.differences if checkpoint is not None else []


def _check_layouts(run: Run, config: Mapping[str, Any], *, elsewhere: bool) -> None:
    """Checks Megatron's configuration in each of the run's layouts."""
    with warnings.catch_warnings():  # megatron-core warns of optional packages when it is imported
        warnings.simplefilter("ignore")
        from megatron_sspo.policy.check import check_policy

        for place, in_layout in layouts_of(run).items():
            try:
                check_policy(in_layout, config, for_other_machines=elsewhere)
            except UserError as error:
                if in_layout is run:
                    raise
                raise UserError(f"{place} does not fit: {error}") from error


def _check_plugins(run: Run, tokenizer: Any) -> Callable[..., Reward]:
    """Checks the advantage, the engine, the environment or agent, and the reward; returns what builds the reward."""
    may_branch = bool(run.rollouts.agent) and run.rollouts.endpoint.max_branches > 1
    check_advantage(run.advantage, run.rollouts.group_size, may_branch=may_branch, refills=run.rollouts.refills)
    check_engine(run)
    check_episodes(run.rollouts, tokenizer)
    return check_plugin("reward", run.reward, run.reward_options)


def _check_weights(model: Path, config: Mapping[str, Any], init: str) -> str:
    """Checks that the model's folder has all tensors of its family. Returns a line on others, or ""."""
    if init == "random":
        load_family(config, model)
        return ""
    with open_folder(model) as folder:
        family = load_family(folder.config, folder.config_folder)
        folder.check(family.rows(folder.config, size(folder.config, "vocab_size")))
        return folder.describe_left_out()


def _check_teacher(teacher: Teacher, tokenizer: Any) -> None:
    """Checks that a teacher of the ranks has all of its weights, and that any has the policy's vocabulary."""
    path = Path(teacher.path)
    try:
        if not teacher.is_served:
            _check_weights(path, read_config_of(path), "pretrained")
        other = load_tokenizer(path)
    except UserError as error:
        raise UserError(f"teacher: {error}") from error
    if other.get_vocab() != tokenizer.get_vocab():
        raise UserError(
            f"teacher.path is {path}, whose tokenizer has another vocabulary than the model's: a teacher scores the "
            "policy's own tokens, so choose one of the same tokenizer"
        )


def _check_data(
    run: Run, config: Mapping[str, Any], tokenizer: Any, reward: Callable[..., Reward], checkpoint: Resumable | None
) -> Iterator[str]:
    """Reads and checks every row: of the prompts, of the held-out sets, and of the warm start. Yields lines on them."""
    stream = prompt_stream(run.prompts, tokenizer, seed=run.seed, shuffle=True)
    if not run.rollouts.agent:  # which may reward its episodes itself, by rows without a gold answer
        check_prompts(reward, stream.prompts, run.reward_options)
    if checkpoint is not None:
        stream.restore(checkpoint.prompts)
    held_out = held_out_streams(run, tokenizer)
    yield from describe_sources({"prompts": stream, **{f"evaluation set {name}": held_out[name] for name in held_out}})
    for each in (stream, *held_out.values()):
        check_prompts_fit(each.prompts, config)
    check_held_out(run, held_out, tokenizer)
    if run.warm_start:
        try:
            for prompt in prompt_stream(run.warm_start.prompts, tokenizer, seed=run.seed, shuffle=False).prompts:
                (rollout,) = demonstration(prompt, tokenizer, max_tokens=run.tokens_per_microbatch).rollouts
                check_vocabulary(prompt.id, [*prompt.tokens, *rollout.tokens.tolist()], config)
        except UserError as error:
            raise UserError(f"warm_start: {error}") from error


def _check_servers(rollouts: Rollouts, *, elsewhere: bool) -> None:
    """Checks that servers of SGLang answer, or that there is a Python that can start them."""
    options = rollouts.options
    if rollouts.engine == "sglang" and not elsewhere and (not options.get("urls") or options.get("router") is not None):
        find_python(options.get("python"))
    server = options.get("server")
    tp_size = server.get("tp_size", 1) if isinstance(server, Mapping) else 1
    resources.check_servers(options.get("urls", ()), tp_size, delta=bool(options.get("delta")))


def _check_folder(run: Run, folder: Path, *, is_new: bool) -> Resumable | None:
    """Checks that a new run's folder holds no run, or that a resumed run's folder holds one and a valid checkpoint.

    Returns the newest checkpoint of a resumed run; None if there is none.
    """
    if is_new:
        check_is_new(folder)
    elif not (folder / "config.json").exists() or is_model(folder):
        raise UserError(f"{folder} is not the folder of a run: name the folder that a run has written, OUTPUT/NAME")
    found = list_checkpoints(folder / "checkpoints")
    if found:
        return check_resumable(run, folder, found[-1])
    if is_new:
        return None
    # a run saves a checkpoint before its model; a kill may leave rows up to the update of the first or second one
    rows = metrics_files.read(folder / metrics_files.METRICS)
    had_one = run.checkpoint_every and any(row["update"] > 2 * run.checkpoint_every for row in rows)
    if had_one or (folder / "model").exists():
        raise UserError(
            f"{folder} has no checkpoint, and its model or its rows of metrics show that there was one, so the run "
            f"cannot be continued, and would begin anew in place of this one: restore {folder / 'checkpoints'}, or "
            "start a new run"
        )
    return None
