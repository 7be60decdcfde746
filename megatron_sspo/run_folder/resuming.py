"""Checks before a run is resumed: its checkpoint, its metrics, and how its configuration has changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from megatron_sspo.checkpoint.state import INITIAL_WEIGHTS, LOOP_STATE, TEACHER_WEIGHTS, read_checkpoint
from megatron_sspo.config.overrides import config_to_json
from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import Manifest, check_content, check_sizes, read_manifest
from megatron_sspo.files.reading import read_json
from megatron_sspo.processes import agree, parent
from megatron_sspo.run import Parallel, Run, check_reference, reason_for_reference
from megatron_sspo.run_folder import metrics_files
from megatron_sspo.weights.family import architecture
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.formats.random import INITIAL_MODEL

_NO_DIFFERENCE = ("name", "output")  # fields that are not compared, because they only name the folder


@dataclass(frozen=True)
class Resumable:
    """A checkpoint that a run can be resumed from.

    Attributes:
        prompts: the state of the prompt stream.
        differences: a line for each field in which the configuration differs from that of the checkpoint.
    """

    prompts: Mapping[str, Any]
    differences: list[str]


def check_resumable(run: Run, folder: Path, checkpoint: Path) -> Resumable:
    """Checks a run's newest checkpoint and its files of metrics.

    If torchrun or srun has started this process, the ranks check the files' content together: `check_files`. Raises
    UserError if a file is missing or damaged, the checkpoint does not belong to this run, or metrics cannot be read.
    """
    manifest = read_manifest(checkpoint)
    check_sizes(checkpoint, manifest)
    if not parent.is_launched():
        check_content(checkpoint, manifest)
    state, extra = read_checkpoint(checkpoint, LOOP_STATE)
    if state.update > run.num_updates:
        raise UserError(
            f"num_updates is {run.num_updates}, but {folder} was already trained for {state.update} updates: raise "
            "num_updates, or start a new run"
        )
    if state.is_warm_started:  # by an earlier attempt, perhaps with a configuration that had the warm start still
        check_reference(run)
    _check_reference_weights(run, extra.get(INITIAL_WEIGHTS), folder)
    if run.held_teacher and (taught := extra.get(TEACHER_WEIGHTS)):
        _check_weights(Path(run.held_teacher), taught, "its teacher (teacher.path)", folder)
    now = config_to_json(run)
    for name, line in _differences(manifest.run.get("model", {}), now["model"], "model"):
        if name != "model.path":  # the folder may have been moved; shapes are compared with the checkpoint's
            raise UserError(f"{line} in the checkpoint {checkpoint}: resume with the value of the checkpoint")
    _check_architecture(Path(run.model.path), checkpoint)
    _check_layout(run, manifest, checkpoint)
    _check_moving_reference(run, manifest, checkpoint)
    for name in (metrics_files.METRICS, metrics_files.EVALUATIONS):
        metrics_files.read(folder / name)
    return Resumable(extra["prompts"], differences(manifest.run, now))


def check_files(checkpoint: Path, *, rank: int, num_ranks: int) -> None:
    """Compares the files of a checkpoint with its manifest; each rank reads a share of them. A collective.

    Raises UserError on all ranks if a file is damaged.
    """
    with agree.same_error_on_all_ranks():
        check_content(checkpoint, read_manifest(checkpoint), rank=rank, num_ranks=num_ranks)


def has_other_layout(run: Run, checkpoint: Path) -> bool:
    """Returns whether a checkpoint has to be resharded for the run. Raises UserError if its manifest is damaged."""
    return _layout(read_manifest(checkpoint).run) != run.parallel


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a line for each field of the configuration that has changed: "optimizer.lr is 2e-06, and was 1e-06".

    All fields of the layout have one line.
    """
    lines = [line for name, line in _differences(before, now, "") if name not in _NO_DIFFERENCE]
    other = [line for line in lines if not line.startswith("parallel.")]
    if _layout(before) == _layout(now):
        return other
    return [f"the layout is {_layout(now).describe()}, and was {_layout(before).describe()}", *other]


def _layout(run: Mapping[str, Any]) -> Parallel:
    """Returns the layout of a configuration in JSON. A field that is missing there is newer, and has its default."""
    saved = run.get("parallel", {})
    return Parallel(**{field.name: saved[field.name] for field in fields(Parallel) if field.name in saved})


def _check_reference_weights(run: Run, initial: str | None, folder: Path) -> None:
    """Checks that a reference policy, or the base of adapters, would be the weights that the run began with.

    Checkpoints say so from some version on.
    """
    path = folder / INITIAL_MODEL if run.model.init == "random" else Path(run.model.path)
    if not (run.needs_reference or run.lora) or initial is None or not path.exists():
        return
    role = "the base of its adapters" if run.lora else f"its reference policy ({reason_for_reference(run)})"
    _check_weights(path, initial, role, folder)


def _check_weights(path: Path, fingerprint: str, role: str, folder: Path) -> None:
    with open_folder(path) as weights:
        if weights.fingerprint() != fingerprint:
            raise UserError(
                f"{path} has other weights than those that {folder} began with, which are {role}: restore them, or "
                "start a new run"
            )


def _check_architecture(model: Path, checkpoint: Path) -> None:
    """Checks that the model is built as that of the checkpoint was. Shapes alone do not say how weights are used."""
    written = checkpoint / "trainer" / "config.json"
    if not written.exists():
        return
    before, now = (architecture(read_json(path), path.parent) for path in (written, model / "config.json"))
    for name in now:
        if now[name] != before.get(name):
            raise UserError(
                f"{model / 'config.json'} gives Megatron {name} {now[name]!r}, and {written} {before.get(name)!r}: "
                "resume with the config.json of the checkpoint"
            )


def _check_layout(run: Run, manifest: Manifest, checkpoint: Path) -> None:
    """Checks that the optimizer is of the same kind, and that its state can be resharded if the layout has changed."""
    before = _layout(manifest.run)
    was_on, is_on = (ddp.get("use_distributed_optimizer", True) for ddp in (manifest.run.get("ddp", {}), run.ddp))
    if was_on != is_on or (before != run.parallel and not is_on):
        raise UserError(
            f"ddp.use_distributed_optimizer is {is_on} and the layout {run.parallel.describe()}, and they were "
            f"{was_on} and {before.describe()} in the checkpoint {checkpoint}; only the state of the distributed "
            "optimizer is resharded: resume with the values of the checkpoint"
        )


def _check_moving_reference(run: Run, manifest: Manifest, checkpoint: Path) -> None:
    """Checks that the checkpoint has the reference's weights if the run's reference moves, and not otherwise."""
    before = manifest.run.get("reference_every", 0)
    if bool(before) != bool(run.reference_every):
        raise UserError(
            f"reference_every is {run.reference_every}, and was {before} in the checkpoint {checkpoint}: only a "
            "reference policy that moves is saved, so resume with that value, or with another one if both are above 0"
        )


def _differences(before: Any, now: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.get("class") == now.get("class"):
        for name in dict.fromkeys((*before, *now)):
            yield from _differences(before.get(name), now.get(name), f"{path}.{name}" if path else name)
    elif before != now:
        yield path, f"{path} is {now!r}, and was {before!r}"
