"""Hugging Face folders: slices of tensors are read in place, and tensors are written from a stream."""

import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from megatron_sspo.errors import UserError, os_errors_as_user_errors, short_repr
from megatron_sspo.files.reading import is_inside, read_json
from megatron_sspo.files.writing import safetensors_errors_as_user_errors
from megatron_sspo.weights.formats.companions import copy_tokenizer_files, write_config
from megatron_sspo.weights.formats.destination import new_folder, real_path
from megatron_sspo.weights.formats.fused_experts import split_fused_experts
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.safetensors_file import Files, StoredTensor, read_header

_SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class HFFolder(ModelFolder):
    """A folder with config.json and safetensors files.

    Attributes:
        index: tensor name -> name of the file that holds it.

    Raises:
        UserError: the folder, config.json or the weights are missing, or cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = self.config_folder = Path(path)
        self._files = Files()
        self._check_kind()
        self.config: dict[str, Any] = read_json(self.path / "config.json")
        self.index: dict[str, str] = self._read_index()
        self._check_no_other_files()

    @cached_property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Tensor name -> its location, from the headers. The index is checked against the files in both directions."""
        found: dict[str, StoredTensor] = {}
        names_of: dict[str, set[str]] = {}
        for name, file_name in self.index.items():
            names_of.setdefault(file_name, set()).add(name)
        for file_name, indexed in names_of.items():
            header = read_header(self.path / file_name)
            if missing := sorted(indexed - header.keys()):
                raise UserError(
                    f"{self.path / file_name} lacks {missing[0]}, which {INDEX} places there; download it again"
                )
            if unindexed := sorted(header.keys() - indexed):
                raise UserError(
                    f"{self.path / file_name} holds {unindexed[0]}, which {INDEX} does not place there; get both again"
                )
            found |= header
        # Llama 2's files have the frequencies of the rotary embedding, which follow from config.json
        stored = {name: found[name] for name in self.index if not name.endswith(".rotary_emb.inv_freq")}
        if not stored:
            raise UserError(f"{self.path} holds safetensors without a tensor of a model; download it again")
        return split_fused_experts(stored, self.config, self.path)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    @cached_property
    def _dtypes(self) -> dict[str, torch.dtype]:
        return {name: tensor.dtype for name, tensor in self.stored.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        return self._dtypes

    def weight_files(self) -> list[Path]:
        return sorted({tensor.file for tensor in self.stored.values()})

    def fill(self, rows: Tensor, name: str, start: int) -> None:
        self._files.fill(rows, self.stored[name], start)

    def close(self) -> None:
        self._files.close()

    def _check_kind(self) -> None:
        """Refuses a path that is not a Hugging Face folder of a whole model; the message says how to make one."""
        if not self.path.is_dir():
            raise UserError(
                f"there is no folder {self.path}; give the path of a Hugging Face checkpoint on this machine"
            )
        if (self.path / "adapter_config.json").exists():
            raise UserError(
                f"{self.path} has the adapter of a model (adapter_config.json): merge it into the model with PEFT's "
                "merge_and_unload, and save that with save_pretrained"
            )
        if any(self.path.glob("mp_rank_*")):
            raise UserError(
                f"{self.path} is a checkpoint of Megatron's older format torch (mp_rank_...), which is not supported; "
                "save it as torch_dist"
            )
        if not os.path.lexists(self.path / "config.json"):
            if snapshot := hub_snapshot(self.path):
                raise UserError(f"{self.path} is the hub's cache of a model; give the path of its snapshot, {snapshot}")
            if checkpoints := sorted(self.path.glob("update-*")):
                raise UserError(
                    f"{self.path} holds checkpoints of a run; give the path of one of them, such as {checkpoints[-1]}"
                )
            found = "a GGUF file" if any(self.path.glob("*.gguf")) else "no config.json"
            raise UserError(
                f"{self.path} has {found}, and is no Hugging Face checkpoint; load the model with Transformers and "
                "save it with save_pretrained"
            )

    def _read_index(self) -> dict[str, str]:
        single, index = self.path / _SINGLE, self.path / INDEX
        has_single, has_index = os.path.lexists(single), os.path.lexists(index)  # true for a broken link too
        if has_single and not has_index:
            return dict.fromkeys(sorted(read_header(single)), _SINGLE)
        if not has_index and (self.path / "checkpoints").is_dir():
            raise UserError(
                f"{self.path} is the folder of a run and holds no safetensors itself; name its folder model, or a "
                "checkpoint in its folder checkpoints"
            )
        if not has_index and (files := sorted(self.path.glob("*-of-*.safetensors"))):
            raise UserError(f"{self.path} has {files[0].name}, and no {INDEX}; get that file, too")
        if not has_index and (files := sorted(self.path.glob("*.safetensors"))):
            raise UserError(
                f"{self.path} has {files[0].name}, and neither {_SINGLE} nor {INDEX}; load the model with the program "
                "that wrote it, and save it with Transformers' save_pretrained"
            )
        if not has_index:
            raise UserError(
                f"{self.path} holds no safetensors: neither {_SINGLE} nor {INDEX}; "
                "load the model with Transformers and save it with save_pretrained"
            )
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, Mapping) or not weight_map:
            raise UserError(f"{index} has no weight_map; download it again")
        if has_single and any(file_name != _SINGLE for file_name in weight_map.values()):
            raise UserError(f"{self.path} holds both {_SINGLE} and {INDEX}, two checkpoints; remove one of them")
        for name, file_name in weight_map.items():
            if not isinstance(file_name, str) or not is_inside(file_name):
                raise UserError(
                    f"{index} places {short_repr(name)} in {short_repr(file_name)}, which is not a file in this "
                    "folder; download it again"
                )
        for file_name in sorted(set(weight_map.values())):
            if not (self.path / file_name).is_file():
                raise UserError(f"{index} names {file_name}, which is not in the folder; download it")
        return dict(weight_map)

    def _check_no_other_files(self) -> None:
        """Refuses files of a model's tensors that are not read; those of another name belong to other programs."""
        found = {file.name for file in self.path.glob("model-[0-9]*-of-[0-9]*.safetensors")}
        if left := sorted(found - set(self.index.values())):
            whole = INDEX if os.path.lexists(self.path / INDEX) else _SINGLE
            raise UserError(
                f"{self.path / left[0]} is not part of the model in {whole}; remove it, or get the folder again"
            )


def hub_snapshot(path: Path) -> Path | None:
    """Returns the newest snapshot in a folder of the hub's cache, models--OWNER--NAME; None if it is no such folder."""
    found = [config.parent for config in path.glob("snapshots/*/config.json")]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def write_folder(
    path: str | Path, tensors: Iterable[tuple[str, Tensor]], *, source: ModelFolder, shard_bytes: int = 5_000_000_000
) -> None:
    """Writes a Hugging Face folder with the configuration and tokenizer of `source`.

    At most one file's tensors are held in memory. The folder appears under its name only when it is complete. Its
    config.json is that of the source, except for the dtype if the tensors have another one.

    Args:
        tensors: (name, tensor) pairs. Tensors stay in memory until their file is full, so a later pair must not
            overwrite the memory of an earlier one.
        shard_bytes: the maximum size of a file, unless a single tensor is larger.

    Raises:
        UserError: `path` exists and is not an empty folder, or cannot be written.
        ValueError: a name occurs twice, or there are no tensors.
    """
    path = real_path(path)
    with os_errors_as_user_errors(path), new_folder(path) as partial:
        dtypes = _write_weights(partial, tensors, shard_bytes, path)
        copy_tokenizer_files(source.config_folder, partial)
        write_config(source.config, partial, dtypes)


def _write_weights(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int, path: Path
) -> set[torch.dtype]:
    """Writes the safetensors and their index. Returns the floating-point dtypes among the tensors.

    Args:
        path: the final name of the folder, for the error of a full disk.
    """
    shards: list[list[str]] = []  # the names in each file
    pending: dict[str, Tensor] = {}
    pending_bytes = total_bytes = 0
    dtypes: set[torch.dtype] = set()
    seen: set[str] = set()

    def flush() -> None:
        nonlocal pending_bytes
        shards.append(list(pending))
        file = folder / f"{len(shards)}.safetensors"
        with safetensors_errors_as_user_errors(path):
            save_file(pending, file, metadata={"format": "pt"})
        _set_default_permissions(file)
        pending.clear()
        pending_bytes = 0

    for name, tensor in tensors:
        if name in seen:
            raise ValueError(f"{name} occurs twice")
        seen.add(name)
        tensor = tensor.detach().cpu().contiguous()
        if pending and pending_bytes + tensor.nbytes > shard_bytes:
            flush()
        pending[name] = tensor
        pending_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
        dtypes |= {tensor.dtype} if tensor.is_floating_point() else set()
    if not seen:
        raise ValueError("there are no tensors to write")
    flush()
    _name_shards(folder, shards, total_bytes)
    return dtypes


def _set_default_permissions(file: Path) -> None:
    """Gives a file in a new folder the permissions of the folder; safetensors lets only its owner read it."""
    file.chmod(0o666 & file.parent.stat().st_mode)


def _name_shards(folder: Path, shards: list[list[str]], total_bytes: int) -> None:
    """Renames the numbered files to what Transformers expects, now that their count is known, and writes the index."""
    weight_map: dict[str, str] = {}
    for number, (file_name, names) in enumerate(zip(file_names(len(shards)), shards, strict=True), start=1):
        (folder / f"{number}.safetensors").rename(folder / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    if len(shards) > 1:
        (folder / INDEX).write_text(index_text(weight_map, total_bytes), encoding="utf-8")


def file_names(count: int) -> list[str]:
    """Returns the names that Transformers gives the files of a model split into `count` files."""
    if count == 1:
        return [_SINGLE]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def index_text(weight_map: Mapping[str, str], num_bytes: int) -> str:
    """Returns the content of the index of several files: tensor name -> file, and the bytes of all tensors."""
    return json.dumps({"metadata": {"total_size": num_bytes}, "weight_map": weight_map}, indent=2) + "\n"
