"""A Hugging Face folder as a stream: slices are read where they lie, tensors are written as they come."""

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from megatron_sspo.errors import UserError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# What travels with the weights. Everything else of the source folder describes the old weights, or is weights.
_COPIED = (
    "generation_config.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*",
    "*.tiktoken",
    "LICENSE*",
)
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class HFFolder:
    """A folder of config.json and safetensors. Files are mapped into memory once, and only what is read is loaded.

    Attributes:
        path: the folder.
        config: the content of config.json.
        index: tensor name -> name of the file that holds it.

    Raises:
        UserError: the folder, config.json or the weights are missing, or cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(
                f"there is no folder {self.path}; give the path of a Hugging Face checkpoint on this machine"
            )
        self._files: dict[str, Any] = {}
        self.config: dict[str, Any] = _read_json(self.path / "config.json")
        self.index: dict[str, str] = self._read_index()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape, from the headers of all files."""
        return {name: shape for name, (shape, _) in self._headers.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        """Tensor name -> dtype, from the headers of all files."""
        return {name: dtype for name, (_, dtype) in self._headers.items()}

    def read(self, name: str, dim: int = 0, start: int | None = None, stop: int | None = None) -> Tensor:
        """The slice [start, stop) along `dim` of a tensor, contiguous; the whole tensor without `start` and `stop`.

        It may be backed by the file: do not write into it.

        Raises:
            UserError: no such tensor, or its file cannot be read.
        """
        if name not in self.index:
            raise UserError(f"{self.path} has no tensor {name}")
        file = self._open(self.index[name])
        try:
            if start is None and stop is None:
                return file.get_tensor(name)
            return file.get_slice(name)[(*(slice(None),) * dim, slice(start, stop))].contiguous()
        except SafetensorError as error:
            raise UserError(f"cannot read {name} from {self.path / self.index[name]}: {error}") from error

    def close(self) -> None:
        """Lets go of the files. A later read opens them again."""
        self._files.clear()

    def __enter__(self) -> "HFFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @cached_property
    def _headers(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Tensor name -> (shape, dtype). Checks the index against the files, both ways."""
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        names_of: dict[str, set[str]] = {}
        for name, file_name in self.index.items():
            names_of.setdefault(file_name, set()).add(name)
        for file_name, indexed in names_of.items():
            file = self._open(file_name)
            stored = set(file.keys())
            if lost := sorted(indexed - stored):
                raise UserError(
                    f"{self.path / file_name} lacks {lost[0]}, which {_INDEX} places there; download it again"
                )
            if strays := sorted(stored - indexed):
                raise UserError(f"{self.path / file_name} holds {strays[0]}, which {_INDEX} does not place there")
            for name in indexed:
                entry = file.get_slice(name)
                if entry.get_dtype() not in _DTYPES:
                    raise UserError(
                        f"{name} of {self.path / file_name} has dtype {entry.get_dtype()}, which is not supported"
                    )
                found[name] = (tuple(entry.get_shape()), _DTYPES[entry.get_dtype()])
        return {name: found[name] for name in self.index}

    def _read_index(self) -> dict[str, str]:
        single, index = self.path / _SINGLE, self.path / _INDEX
        if single.exists() and index.exists():
            raise UserError(f"{self.path} holds both {_SINGLE} and {_INDEX}, two checkpoints; remove one of them")
        if single.exists():
            return dict.fromkeys(sorted(self._open(_SINGLE).keys()), _SINGLE)
        if not index.exists():
            raise UserError(
                f"{self.path} holds no safetensors: neither {_SINGLE} nor {_INDEX}; "
                "load the model with Transformers and save it with save_pretrained"
            )
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, Mapping) or not weight_map:
            raise UserError(f"{index} has no weight_map; download it again")
        for file_name in sorted(set(weight_map.values())):
            if not (self.path / file_name).is_file():
                raise UserError(f"{index} names {file_name}, which is not in the folder; download it")
        return dict(weight_map)

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            try:
                self._files[file_name] = safe_open(self.path / file_name, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(
                    f"cannot read {self.path / file_name}: {error}; it is truncated or damaged, get it again"
                ) from error
        return self._files[file_name]


def write_folder(
    path: str | Path,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    source: HFFolder,
    dtype: torch.dtype | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a Hugging Face folder whose configuration and tokenizer are those of `source`.

    No more than one file's tensors are held in memory. The folder appears under its name when it is complete, and not
    before. config.json is that of the source, except for its dtype where the tensors have another.

    Args:
        tensors: (name, tensor) pairs. Tensors wait in memory for their file to fill, so a later pair must not overwrite
            an earlier one's.
        dtype: what floating-point tensors are cast to; None leaves them as they are.
        shard_bytes: the most that one file holds, unless a single tensor is larger.

    Raises:
        UserError: `path` exists and is not an empty folder.
        ValueError: a name comes twice, or there are no tensors.
    """
    path = Path(path).resolve()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists and is not an empty folder; remove it or write somewhere else")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    partial.mkdir()
    try:
        dtypes = _write_weights(partial, tensors, dtype, shard_bytes)
        _copy_companions(source, partial)
        _write_config(source, partial, dtypes)
        for file in [*partial.rglob("*"), partial]:
            _sync(file)
        partial.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _write_weights(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None, shard_bytes: int
) -> set[torch.dtype]:
    """Writes the safetensors and their index. Returns the floating-point dtypes among the tensors."""
    shards: list[list[str]] = []  # the names in each file
    pending: dict[str, Tensor] = {}
    pending_bytes = total_bytes = 0
    dtypes: set[torch.dtype] = set()
    seen: set[str] = set()

    def flush() -> None:
        nonlocal pending_bytes
        shards.append(list(pending))
        file = folder / f"{len(shards)}.safetensors"
        save_file(pending, file, metadata={"format": "pt"})
        _let_others_read(file)
        pending.clear()
        pending_bytes = 0

    for name, tensor in tensors:
        if name in seen:
            raise ValueError(f"{name} comes twice")
        seen.add(name)
        is_float = tensor.is_floating_point()
        tensor = tensor.detach().to("cpu", dtype if is_float else None).contiguous()
        if pending and pending_bytes + tensor.nbytes > shard_bytes:
            flush()
        pending[name] = tensor
        pending_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
        dtypes |= {tensor.dtype} if is_float else set()
    if not seen:
        raise ValueError("there are no tensors to write")
    flush()
    _name_shards(folder, shards, total_bytes)
    return dtypes


def _let_others_read(file: Path) -> None:
    """Gives a file the permissions that any new file gets; safetensors makes it for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def _name_shards(folder: Path, shards: list[list[str]], total_bytes: int) -> None:
    """Renames the numbered files to what Transformers expects, now that their count is known, and writes the index."""
    if len(shards) == 1:
        (folder / "1.safetensors").rename(folder / _SINGLE)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / file_name)
        weight_map.update(dict.fromkeys(names, file_name))
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_companions(source: HFFolder, folder: Path) -> None:
    for pattern in _COPIED:
        for file in source.path.glob(pattern):
            if file.is_file():
                target = folder / file.relative_to(source.path)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)


def _write_config(source: HFFolder, folder: Path, dtypes: set[torch.dtype]) -> None:
    """Copies config.json. Where all tensors have one dtype, it is the one that config.json names."""
    config = dict(source.config)
    if len(dtypes) == 1:
        # Transformers 5 writes `dtype`, earlier versions `torch_dtype`; both read the latter.
        fields = [field for field in ("dtype", "torch_dtype") if field in config] or ["torch_dtype"]
        config.update(dict.fromkeys(fields, str(dtypes.pop()).removeprefix("torch.")))
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content


def _sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
