"""Checks that need no process group; the launching process runs them in a few seconds."""

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.checkpoint.state import list_checkpoints
from megatron_sspo.config.resolve import check_options, resolve
from megatron_sspo.data.demonstration import demonstration
from megatron_sspo.data.fit import check_prompts_fit, check_vocabulary
from megatron_sspo.data.open import describe_sources, prompt_stream
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.evaluation.sets import check_environments, check_held_out, check_rewards, held_out_streams
from megatron_sspo.files.reading import check_regular_file, read_json
from megatron_sspo.preflight import resources
from megatron_sspo.preflight.initial_model import check_initial_model
from megatron_sspo.processes.console import LOG
from megatron_sspo.processes.ports import check_address
from megatron_sspo.processes.surroundings import check_open_files
from megatron_sspo.reward.protocol import check_prompts
from megatron_sspo.rollout.advantages import check_advantage
from megatron_sspo.rollout.open_engine import check_engine
from megatron_sspo.rollout.open_episodes import check_episodes
from megatron_sspo.rollout.servers.process import find_python
from megatron_sspo.rollout.stopping import describe_end_of_turn, named_end_tokens
from megatron_sspo.run import Run, check, layouts_of
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.run_folder.lock import LOCK
from megatron_sspo.run_folder.resuming import Resumable, check_resumable
from megatron_sspo.trackers.open import check as check_trackers
from megatron_sspo.weights.family import load_family, size
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.formats.random import INITIAL_MODEL
from megatron_sspo.weights.transformers_config import read_config

_RESULT_FILES = (metrics_files.METRICS, metrics_files.EVALUATIONS, metrics_files.ROLLOUTS)  # written after config.json
_RESULTS = (*_RESULT_FILES, "model", "curves.png")
_WRITTEN = (*_RESULT_FILES, "config.json", LOG, LOCK, "curves.png")  # files that a resumed run writes


def preflight(
    run: Run, *, resume: Path | None, elsewhere: bool = False, log: Callable[[str], None] = lambda line: None
) -> list[str]:
    """Checks a run before it starts: its configuration, folders, data, plug-ins, and the machine.

    The configuration includes Megatron's fields. Every row of the data is read, and checked by its reward. On the
    machine, the disk, the rendezvous port, the limit on open files, and the address and URLs of servers are checked; on
    ranks that torchrun or srun has started, only rank 0 does this. `check_ranks` checks the memory of the ranks.

    Args:
        resume: the folder of the run to resume; None for a new run.
        elsewhere: whether the run is for other machines than this one.
        log: function that is called with each line about the data.

    Returns:
        A line for each field that differs from the configuration in the checkpoint of a resumed run.

    Raises:
        UserError: the first check that fails.
    """
    check(run)
    is_first = os.environ.get("RANK", "0") == "0"
    config = resources.read_model_config(run)
    _check_layouts(run, config, elsewhere=elsewhere)
    checkpoint = check_folder(run, resume)
    check_trackers(run.tracking)
    _check_plugins(run)
    tokenizer = load_tokenizer(Path(run.model.path))
    _check_model(run, config, tokenizer)
    if line := describe_end_of_turn(Path(run.model.path), tokenizer):
        log(line)
    _check_data(run, config, tokenizer, checkpoint, log)
    if is_first:
        _check_machine(run, config, resume or Path(run.output) / run.name, elsewhere=elsewhere)
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


def _check_plugins(run: Run) -> None:
    """Checks the names and options of the advantage, the rewards and the engine."""
    may_branch = bool(run.rollouts.agent) and run.rollouts.endpoint.max_branches > 1
    check_advantage(run.advantage, run.rollouts.group_size, may_branch=may_branch, refills=run.rollouts.refills)
    check_options(resolve("reward", run.reward, "reward"), run.reward_options, f"the reward {run.reward!r}")
    check_rewards(run)
    check_engine(run)


def _check_model(run: Run, config: Mapping[str, Any], tokenizer: Any) -> None:
    """Checks the files of the model's folder, and that its chat template fits the environment."""
    model_path = Path(run.model.path)
    _check_special_tokens(model_path, size(config, "vocab_size"), tokenizer)
    check_episodes(run.rollouts, tokenizer)
    if run.model.init == "random":
        load_family(config, model_path)
        return
    with open_folder(model_path) as folder:
        family = load_family(folder.config, folder.config_folder)
        folder.check(family.rows(folder.config, size(folder.config, "vocab_size")))


def _check_special_tokens(model_path: Path, vocab_size: int, tokenizer: Any) -> None:
    """Checks that end tokens and the padding token are tokens of the model."""
    config = read_config(model_path)
    named = {
        (place, "eos_token_id", token)
        for place, tokens in named_end_tokens(model_path, config, tokenizer).items()
        for token in tokens
    }
    if (padding := getattr(config, "pad_token_id", None)) is not None:
        named.add(("config.json", "pad_token_id", padding))
    for place, field, token in sorted(named):
        if not -vocab_size <= token < vocab_size:  # Transformers counts a negative one from the end
            raise UserError(
                f"{place} in {model_path} has {field} {token}, and the model's vocabulary has {vocab_size} tokens "
                "(vocab_size of config.json): name one of them, as in the files that belong to the model"
            )


def _check_data(
    run: Run,
    config: Mapping[str, Any],
    tokenizer: Any,
    checkpoint: Resumable | None,
    log: Callable[[str], None],
) -> None:
    """Reads and checks every row: of the prompts, of the held-out sets, and of the warm start."""
    stream = prompt_stream(run.prompts, tokenizer, seed=run.seed, shuffle=True)
    check_prompts_fit(stream.prompts, config)
    _check_overlong_penalty(run, min(len(prompt.tokens) for prompt in stream.prompts), config)
    if not run.rollouts.agent:  # which may reward its episodes itself, by rows without a gold answer
        check_prompts(resolve("reward", run.reward, "reward"), stream.prompts, run.reward_options)
    if checkpoint is not None:
        stream.restore(checkpoint.prompts)
    held_out = held_out_streams(run, tokenizer)
    for line in describe_sources(
        {"prompts": stream, **{f"evaluation set {name}": held_out[name] for name in held_out}}
    ):
        log(line)
    for set_stream in held_out.values():
        check_prompts_fit(set_stream.prompts, config)
    check_held_out(run, held_out)
    check_environments(run, tokenizer)
    if run.warm_start:
        try:
            for prompt in prompt_stream(run.warm_start.prompts, tokenizer, seed=run.seed, shuffle=False).prompts:
                (rollout,) = demonstration(prompt, tokenizer, max_tokens=run.tokens_per_microbatch).rollouts
                check_vocabulary(prompt.id, [*prompt.tokens, *rollout.tokens.tolist()], config)
        except UserError as error:
            raise UserError(f"warm_start: {error}") from error


def _check_overlong_penalty(run: Run, shortest_prompt: int, config: Mapping[str, Any]) -> None:
    """Raises UserError if no response can become long enough for the penalty on its length."""
    rollouts, positions = run.rollouts, size(config, "max_position_embeddings")
    begins_at = rollouts.sampling.max_tokens - rollouts.overlong_buffer
    if rollouts.overlong_buffer and shortest_prompt + begins_at >= positions:
        raise UserError(
            f"rollouts.overlong_buffer is {rollouts.overlong_buffer}: its penalty begins after {begins_at} tokens of a "
            f"response, which none can have, because the model has {positions} positions (max_position_embeddings): "
            "lower rollouts.sampling.max_tokens to the tokens that the model has room for after a prompt"
        )


def _check_machine(run: Run, config: Mapping[str, Any], folder: Path, *, elsewhere: bool) -> None:
    """Checks the disk, the ports, the limit on open files, and the servers."""
    options = run.rollouts.options
    resources.check_disk(run, config, folder)
    resources.check_port()
    check_open_files()
    if run.rollouts.engine == "sglang" and not elsewhere:
        check_address(options.get("address", "127.0.0.1"))
        if not options.get("urls") or options.get("router") is not None:
            find_python(options.get("python"))
    server = options.get("server")
    tp_size = server.get("tp_size", 1) if isinstance(server, Mapping) else 1
    resources.check_servers(options.get("urls", ()), tp_size)


def check_folder(run: Run, resume: Path | None) -> Resumable | None:
    """Checks that a new run's folder holds no run, or that a resumed run's folder holds one and a valid checkpoint.

    Returns:
        The newest checkpoint; None if there is none.

    Raises:
        UserError: the folder or its newest checkpoint fails the check.
    """
    folder = resume or Path(run.output) / run.name
    if resume is None:
        check_is_new(folder)
    else:
        _check_is_a_run(folder)
        with os_errors_as_user_errors():
            for name in _WRITTEN:
                if (folder / name).exists():
                    check_regular_file(folder / name)
    found = list_checkpoints(folder / "checkpoints")
    if resume is not None and not found and (folder / "model").exists():  # a run saves a checkpoint before its model
        raise UserError(
            f"{folder} has a model and no checkpoint, so the run cannot be continued, and would begin anew in place of "
            f"this one: restore {folder / 'checkpoints'}, or start a new run with --set model.path={folder / 'model'}"
        )
    if not found:
        if resume is not None:
            _check_begins_anew(run, folder / metrics_files.METRICS)
        return None
    resumable = check_resumable(run, folder, found[-1])
    if run.model.init == "random":
        check_initial_model(Path(run.model.path), folder / INITIAL_MODEL)
    return resumable


def _check_begins_anew(run: Run, metrics: Path) -> None:
    """Raises UserError if a run without a checkpoint has rows of metrics from after the first one it must have saved.

    A kill may leave rows up to the update of the first checkpoint; up to that of the second one, if checkpoints are
    written in the background. A warm start makes a checkpoint of update 0.
    """
    newest = max((row["update"] for row in metrics_files.read_complete_rows(metrics)), default=0)
    without = (int(run.warm_start is None) + int(run.checkpoint_in_background)) * run.checkpoint_every
    if run.checkpoint_every and newest > without:
        raise UserError(
            f"{metrics} has a row of update {newest:.0f}, and there is no checkpoint, so the run cannot be continued, "
            f"and would begin anew in place of this one: restore {metrics.parent / 'checkpoints'}, or remove that file"
        )


def check_is_new(folder: Path) -> None:
    """Raises UserError if a folder holds a run or a model, or files of other names that a new run would overwrite."""
    config = folder / "config.json"
    if not config.exists():
        if found := [name for name in _RESULTS if (folder / name).exists()]:
            raise UserError(
                f"{folder} already contains {found[0]}, which a new run would overwrite: choose another folder with "
                "--set name=..."
            )
        return
    if _is_model_config(config):
        raise UserError(f"{folder} already contains a model: choose another folder with --set name=...")
    raise UserError(
        f"{folder} already contains a run: continue it with --resume {folder}, or choose another folder with "
        "--set name=..."
    )


def _check_is_a_run(folder: Path) -> None:
    """Raises UserError if a folder holds no run, or a model, which a resumed run would overwrite."""
    config = folder / "config.json"
    if not config.exists():
        if _is_killed_early(folder):
            raise UserError(f"the run of {folder} was killed before it began: start it without --resume")
        configs = (parent / "config.json" for parent in folder.parents)  # above a checkpoint is its run
        run = next((found.parent for found in configs if found.exists() and not _is_model_config(found)), None)
        remedy = f"did you mean {run}?" if run is not None else "name the folder that a run has written, OUTPUT/NAME"
        raise UserError(f"{folder} is not the folder of a run, because it has no config.json: {remedy}")
    if _is_model_config(config):
        raise UserError(f"{folder} is the folder of a model: name the folder of a run, which has metrics.jsonl")


def _is_killed_early(folder: Path) -> bool:
    """Returns whether a run has locked a folder and has written only other folders, such as that of random weights."""
    if not (folder / LOCK).exists() or (folder / "model").exists():
        return False
    return all(path.is_dir() for path in folder.iterdir() if not path.name.startswith(".") and path.name != LOG)


def _is_model_config(config: Path) -> bool:
    """Returns whether a config.json is a model's. A run's may be damaged, because no checkpoint depends on it."""
    try:
        return "model_type" in read_json(config)
    except UserError:
        return False
