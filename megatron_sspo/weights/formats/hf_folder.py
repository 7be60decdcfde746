"""Hugging Face folders: slices of tensors are read in place, and tensors are written from a stream."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.files.reading import read_json
from megatron_sspo.files.writing import safetensors_errors_as_user_errors
from megatron_sspo.weights import mxfp4
from megatron_sspo.weights.family import language_model
from megatron_sspo.weights.formats.companions import MTP, copy_tokenizer_files, write_config
from megatron_sspo.weights.formats.destination import new_folder
from megatron_sspo.weights.formats.fused_experts import split_fused_experts
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.safetensors_file import Files, StoredTensor, read_header
from megatron_sspo.weights.fp8 import BLOCK, SCALE_SUFFIX, dequantize, is_known

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class HFFolder(ModelFolder):
    """A folder with config.json and safetensors files (`files`); of a model of images and text, its language model.

    Raises UserError if config.json or the weights are missing, or cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = self.config_folder = Path(path)
        if (self.path / "adapter_config.json").exists():  # Transformers would apply it
            raise UserError(
                f"{self.path} has the adapter of a model (adapter_config.json): merge it into the model with PEFT's "
                "merge_and_unload, and save that with save_pretrained"
            )
        if not (self.path / "config.json").exists():
            raise UserError(
                f"{self.path} has no config.json: give the path of a Hugging Face folder, of a Megatron checkpoint "
                "(torch_dist) or of a run's checkpoint"
            )
        self.config: dict[str, Any] = read_json(self.path / "config.json")
        self._is_quantized = is_known(self.config.get("quantization_config"))
        if self._is_quantized:  # the folder is read as one in bfloat16
            del self.config["quantization_config"]
        if isinstance(self.config.get("text_config"), dict) and "vision_config" in self.config:
            self.config = language_model(self.config)
        self.files = self._list_files()
        self._reader = Files()
        self._blocks: dict[str, tuple[StoredTensor, StoredTensor]] = {}  # of tensors in MXFP4: blocks and scales

    _scales: Mapping[str, StoredTensor] = {}

    @cached_property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Tensor name -> its location, from the headers of the files."""
        stored = [tensor for file in self.files for tensor in read_header(self.path / file)]
        # a model of images and text has names of its own for the language model, which is all that is read of it
        stored = [
            replace(tensor, name=tensor.name.replace("model.language_model.", "model.", 1))
            for tensor in stored
            if not tensor.name.startswith("model.visual.")
        ]
        found: dict[str, StoredTensor] = {}
        for tensor in split_fused_experts(stored, self.config, self.path):
            if found.setdefault(tensor.name, tensor) is not tensor:
                raise UserError(f"{self.path} holds {tensor.name} twice; remove one of them")
        # Llama 2's files have the frequencies of the rotary embedding, which follow from config.json
        found = {name: tensor for name, tensor in found.items() if not name.endswith(".rotary_emb.inv_freq")}
        first, count = (self.config.get(name) or 0 for name in ("num_hidden_layers", MTP))
        of_mtp = *(f"model.layers.{layer}." for layer in range(first, first + count)), "mtp."
        found, num_tensors = {n: t for n, t in found.items() if not n.startswith(of_mtp)}, len(found)
        self.num_mtp_tensors = num_tensors - len(found)
        if self._is_quantized:
            for name in [n.removesuffix(mxfp4.BLOCKS) for n in found if n.endswith(mxfp4.BLOCKS)]:
                if name + mxfp4.SCALES not in found:
                    raise UserError(f"{self.path} holds {name + mxfp4.BLOCKS} without its scales; download it again")
                blocks, scales = found.pop(name + mxfp4.BLOCKS), found.pop(name + mxfp4.SCALES)
                self._blocks[name] = blocks, scales
                found[name] = replace(blocks, name=name, shape=mxfp4.shape(blocks.shape), dtype=torch.bfloat16)
            of_scales = [name for name in found if name.endswith(SCALE_SUFFIX)]
            self._scales = {name.removesuffix(SCALE_SUFFIX): found.pop(name) for name in of_scales}
        if not found:
            raise UserError(f"{self.path} holds safetensors without a tensor of a model; download it again")
        return found

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    @cached_property
    def _dtypes(self) -> dict[str, torch.dtype]:
        found = {name: tensor.dtype for name, tensor in self.stored.items()}
        return found | dict.fromkeys(self._scales, torch.bfloat16)

    def dtypes(self) -> dict[str, torch.dtype]:
        return self._dtypes

    def weight_files(self) -> list[Path]:
        return [self.path / file for file in self.files]

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        stored = self.stored[name]
        if (parts := self._blocks.get(name)) is not None:
            return mxfp4.dequantize(*(self._reader.read(part, start, stop) for part in parts))
        rows = self._reader.read(stored, start, stop)
        if (scale := self._scales.get(name)) is None:
            return rows
        scales = self._reader.read(scale, start // BLOCK, -(-stop // BLOCK))
        return dequantize(rows, scales, torch.bfloat16, first=start)

    def close(self) -> None:
        self._reader.close()

    def _list_files(self) -> list[str]:
        """Returns the names of the files with tensors; like Transformers it prefers one file to the files of an index.

        Files of other names belong to other programs.
        """
        if (self.path / _SINGLE).exists():
            return [_SINGLE]
        if (self.path / _INDEX).exists():
            return sorted(set(read_json(self.path / _INDEX).get("weight_map", {}).values()))
        raise UserError(
            f"{self.path} holds no safetensors: neither {_SINGLE} nor {_INDEX}; get the missing files, or load the "
            "model with Transformers and save it with save_pretrained"
        )


def hub_snapshot(path: Path) -> Path | None:
    """Returns the newest snapshot in a folder of the hub's cache, models--OWNER--NAME; None if it is no such folder."""
    found = [config.parent for config in path.glob("snapshots/*/config.json")]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def write_folder(
    path: str | Path,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    source: ModelFolder,
    shard_bytes: int = 5_000_000_000,
    also: Mapping[str, Any] | None = None,
) -> None:
    """Writes a Hugging Face folder with the configuration and tokenizer of `source`.

    At most one file's tensors are held in memory. The folder appears under its name only when it is complete. Its
    config.json is that of the source, except for the dtype if the tensors have another one.

    Args:
        tensors: (name, tensor) pairs. Tensors stay in memory until their file is full, so a later pair must not
            overwrite the memory of an earlier one.
        shard_bytes: the maximum size of a file, unless a single tensor is larger.
        also: further fields of config.json.

    Raises:
        UserError: `path` exists and is not an empty folder, or cannot be written.
    """
    path = Path(os.path.realpath(path))
    dtypes: set[torch.dtype] = set()
    files: list[list[str]] = []  # the names in each file
    num_bytes = 0
    with os_errors_as_user_errors(path), safetensors_errors_as_user_errors(path), new_folder(path) as partial:
        for content in _in_files(tensors, shard_bytes):
            dtypes |= {tensor.dtype for tensor in content.values() if tensor.is_floating_point() and tensor.ndim > 1}
            num_bytes += sum(tensor.nbytes for tensor in content.values())
            files.append(list(content))
            save_file(content, partial / f"{len(files)}.safetensors", metadata={"format": "pt"})
        names = file_names(len(files))
        for number, name in enumerate(names, start=1):
            file = (partial / f"{number}.safetensors").rename(partial / name)
            file.chmod(0o666 & partial.stat().st_mode)  # safetensors lets only the owner read it
        write_index(partial, files, num_bytes)
        copy_tokenizer_files(source.config_folder, partial)
        write_config({**source.config, **(also or {})}, partial, dtypes)


def _in_files(tensors: Iterable[tuple[str, Tensor]], file_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors of each file, on the host."""
    pending: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if pending and sum(each.nbytes for each in pending.values()) + tensor.nbytes > file_bytes:
            yield pending
            pending = {}
        pending[name] = tensor.detach().cpu().contiguous()
    yield pending


def file_names(count: int) -> list[str]:
    """Returns the names that Transformers gives the files of a model split into `count` files."""
    if count == 1:
        return [_SINGLE]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def write_index(folder: Path, files: list[list[str]], num_bytes: int) -> None:
    """Writes the index of several files, each a list of names: tensor name -> file, and the bytes of all tensors."""
    if len(files) > 1:
        placed = {name: file for file, names in zip(file_names(len(files)), files, strict=True) for name in names}
        text = json.dumps({"metadata": {"total_size": num_bytes}, "weight_map": placed}, indent=2) + "\n"
        (folder / _INDEX).write_text(text, encoding="utf-8")
