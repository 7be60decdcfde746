"""Damaged checkpoints, metrics files and recipes are reported by name before anything is loaded."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from megatron_sspo.checkpoint.state import TEACHER_WEIGHTS
from megatron_sspo.errors import UserError
from megatron_sspo.files.manifest import checksums, read_manifest, write_manifest
from megatron_sspo.preflight.preflight import preflight
from megatron_sspo.recipe import load_recipe
from megatron_sspo.run import Teacher
from megatron_sspo.weights.formats.open_folder import open_folder
from megatron_sspo.weights.formats.random import INITIAL_MODEL

pytestmark = pytest.mark.slow

NEWEST = Path("checkpoints/update-000002")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def edit(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_with_manifest(checkpoint: Path, change: Callable[[dict], None]) -> None:
    """Changes a checkpoint's state and its manifest, so that the change is not detected as damage."""
    edit(checkpoint / "state.json", change)
    manifest = read_manifest(checkpoint)
    write_manifest(
        checkpoint, type(manifest)({**manifest.files, **checksums(checkpoint, ["state.json"])}, manifest.run)
    )


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of a shard is flipped": (
        lambda run: flip(run / NEWEST / "trainer/__0_0.distcp"),
        "is damaged (the content of trainer/__0_0.distcp is not what was written)",
    ),
    "the manifest is gone": (lambda run: (run / NEWEST / "manifest.json").unlink(), "it has no manifest.json"),
    "garbage ends the metrics": (
        lambda run: append(run / "metrics.jsonl", "\x00\x01garbage\n"),
        "metrics.jsonl, line 3 is not a row",
    ),
    "garbage in the evaluations": (
        lambda run: append(run / "evaluations.jsonl", "garbage\n"),
        "evaluations.jsonl, line 1 is not a row",
    ),
}

# changes of the configuration -> the error
REFUSED = {
    ("num_updates=1",): "num_updates is 1, but",
    ("model.dtype=bfloat16",): "model.dtype is 'bfloat16', and was 'float32' in the checkpoint",
    ("seed=5",): "the prompts cannot be resumed: the checkpoint's stream has seed=0 and this one seed=5",
    ("prompts.options.size=11",): "the prompts cannot be resumed: the checkpoint's stream has size=10",
}

# changes of the configuration -> the remarks
SAID = {
    (): [],
    ("optimizer.lr=1e-4", "num_updates=3"): ["num_updates is 3, and was 2", "optimizer.lr is 0.0001, and was 0.001"],
    ("parallel.data=2", "parallel.expert=2"): ["the layout is data 2, expert 2, and was one process"],
}


@pytest.fixture
def run_folder(trained, tmp_path: Path) -> Path:
    """A copy of a finished run of two updates."""
    return Path(shutil.copytree(trained.folder / "run", tmp_path / "run"))


def look(trained, folder: Path, *changes: str) -> list[str]:
    run = load_recipe(f"{trained.recipe}:bare", ["num_updates=2", *changes])
    return preflight(run, resume=folder)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(trained, run_folder: Path, name: str) -> None:
    spoil, sentence = DAMAGE[name]
    spoil(run_folder)
    with pytest.raises(UserError) as caught:
        look(trained, run_folder)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.items())
def test_what_does_not_fit_the_checkpoint_is_named(trained, run_folder: Path, changes, sentence) -> None:
    with pytest.raises(UserError) as caught:
        look(trained, run_folder, *changes)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("changes", "lines"), SAID.items())
def test_differences_that_do_no_harm_are_said(trained, run_folder: Path, changes, lines) -> None:
    assert look(trained, run_folder, *changes) == lines


def test_a_model_of_another_architecture_is_named(trained, run_folder: Path, tmp_path: Path) -> None:
    model = Path(load_recipe(f"{trained.recipe}:bare", []).model.path)
    other = Path(shutil.copytree(model, tmp_path / "model"))
    edit(other / "config.json", lambda config: config.update(max_position_embeddings=4096))
    assert look(trained, run_folder, f"model.path={other}") == [f"model.path is {str(other)!r}, and was {str(model)!r}"]
    edit(other / "config.json", lambda config: config.update(rms_norm_eps=0.5))
    with pytest.raises(UserError, match=r"model/config.json gives Megatron layernorm_epsilon 0.5, and .*: resume with"):
        look(trained, run_folder, f"model.path={other}")


def test_what_a_kill_may_leave_is_no_damage(trained, run_folder: Path) -> None:
    """The weights of the start are written again from the seed."""
    append(run_folder / "metrics.jsonl", '{"update": 3, "reward/me')
    shutil.rmtree(run_folder / "initial_model")
    assert look(trained, run_folder) == []


def test_a_penalty_whose_reference_a_warm_start_has_replaced_is_refused(trained, run_folder: Path) -> None:
    """The configuration of the newest attempt need not have the warm start any more."""
    assert look(trained, run_folder, "penalties.kl_coef=0.5") == ["penalties.kl_coef is 0.5, and was 0.0"]
    edit_with_manifest(run_folder / NEWEST, lambda state: state.update(is_warm_started=True))
    with pytest.raises(UserError, match=r"penalties.kl_coef is 0.5 in a run with a warm start, .*: warm-start"):
        look(trained, run_folder, "penalties.kl_coef=0.5")


@pytest.mark.parametrize("init", ["random", "pretrained"])
def test_a_penalty_whose_reference_has_other_weights_is_refused(trained, run_folder: Path, tmp_path, init) -> None:
    """The folder of the weights has been trained further, or is another one."""
    model = run_folder / INITIAL_MODEL
    if init == "pretrained":
        model = shutil.copytree(model, tmp_path / "model")
        checkpoint = run_folder / NEWEST
        manifest = read_manifest(checkpoint)
        manifest.run["model"]["init"] = init
        write_manifest(checkpoint, manifest)
    changes = ["penalties.kl_coef=0.5", f"model.init={init}", *([f"model.path={model}"] * (init == "pretrained"))]
    look(trained, run_folder, *changes)
    weights = load_file(model / "model.safetensors")
    save_file({name: weight + 0.5 for name, weight in weights.items()}, model / "model.safetensors")
    look(trained, run_folder, *changes[1:])
    with pytest.raises(
        UserError, match=r"model has other weights than those .*penalties.kl_coef is 0.5\): restore them"
    ):
        look(trained, run_folder, *changes)
    with pytest.raises(UserError, match="are the base of its adapters"):
        look(trained, run_folder, *changes[1:], "lora.rank=4")


def test_a_teacher_with_other_weights_or_another_vocabulary_is_refused(trained, run_folder: Path, tmp_path) -> None:
    teacher = shutil.copytree(run_folder / INITIAL_MODEL, tmp_path / "teacher")

    def look(trained, folder: Path) -> None:
        run = replace(load_recipe(f"{trained.recipe}:bare", ["num_updates=2"]), teacher=Teacher(path=str(teacher)))
        preflight(run, resume=folder)

    look(trained, run_folder)
    with open_folder(teacher) as folder:
        fingerprint = folder.fingerprint()
    edit_with_manifest(run_folder / NEWEST, lambda state: state.update({TEACHER_WEIGHTS: fingerprint}))
    look(trained, run_folder)
    weights = load_file(teacher / "model.safetensors")
    save_file({name: weight + 0.5 for name, weight in weights.items()}, teacher / "model.safetensors")
    with pytest.raises(UserError, match=r"teacher has other weights than those .* are its teacher"):
        look(trained, run_folder)
    text = (teacher / "tokenizer.json").read_text()
    assert '"7"' in text
    (teacher / "tokenizer.json").write_text(text.replace('"7"', '"seven"'))
    edit_with_manifest(run_folder / NEWEST, lambda state: state.update({TEACHER_WEIGHTS: ""}))
    with pytest.raises(UserError, match="tokenizer has another vocabulary than the model's"):
        look(trained, run_folder)


def test_a_run_that_has_lost_its_checkpoints_is_not_begun_anew(trained, run_folder) -> None:
    shutil.rmtree(run_folder / "model")
    shutil.rmtree(run_folder / "checkpoints")
    assert look(trained, run_folder, "checkpoint_every=1") == [], "a kill may come before the second is complete"
    append(run_folder / "metrics.jsonl", '{"update": 3}\n')
    assert look(trained, run_folder, "checkpoint_every=0") == []
    with pytest.raises(UserError, match=r"has no checkpoint, and its model or its rows .*: restore .*/checkpoints"):
        look(trained, run_folder, "checkpoint_every=1")


def test_another_layout_without_the_distributed_optimizer_is_refused(trained, run_folder: Path) -> None:
    message = r"use_distributed_optimizer is False and the layout .*: resume with the values of the checkpoint"
    with pytest.raises(UserError, match=message):
        look(trained, run_folder, "ddp.use_distributed_optimizer=false")
    manifest = read_manifest(run_folder / NEWEST)
    write_manifest(
        run_folder / NEWEST, replace(manifest, run={**manifest.run, "ddp": {"use_distributed_optimizer": False}})
    )
    with pytest.raises(UserError, match=message):
        look(trained, run_folder, "parallel.data=2", "ddp.use_distributed_optimizer=false")
