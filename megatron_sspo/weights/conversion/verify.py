"""Compares two model folders of any kind, tensor by tensor and bit by bit."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_sspo.errors import UserError, os_errors_as_user_errors
from megatron_sspo.weights.conversion.progress import Meter, check_content, print_padding
from megatron_sspo.weights.family import flag
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.formats.open_folder import check_config_folder, open_folder
from megatron_sspo.weights.formats.stored import DEFAULT_THREADS, StoredTensor

_BLOCK_BYTES = 1024**2
# A folder of a model with tied embeddings may have this copy of the second tensor; a conversion leaves it out.
_COPY, _TIED = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    num_tensors: int  # tensors that both folders have
    num_bytes: int
    differences: list[str]  # one sentence per difference


def verify(first: str | Path, second: str | Path, *, config_folder: Path | None = None) -> Comparison:
    """Compares names, shapes, dtypes and every bit of the tensors, under their Hugging Face names.

    If only one folder has the output layer of a model with tied embeddings, that is compared with the embedding.

    Args:
        config_folder: the Hugging Face folder with config.json, for a Megatron checkpoint without it.

    Raises:
        UserError: one of the two cannot be read, neither is a Megatron checkpoint, for which `config_folder` is, or
            one is a cast of the other.
    """
    with os_errors_as_user_errors(), open_folder(first, config_folder) as a, open_folder(second, config_folder) as b:
        check_config_folder(config_folder, a, b)
        for folder in (a, b):
            check_content(folder)
            print_padding(folder)
        return _compare(a, b)


def _compare(a: ModelFolder, b: ModelFolder) -> Comparison:
    pairs = [(a.stored[name], b.stored[name]) for name in a.stored if name in b.stored]
    differences, comparable = [], []
    for folder, other in ((a, b), (b, a)):
        for name, tensor in folder.stored.items():
            if name in other.stored:
                continue
            if name == _COPY and _TIED in other.stored and flag(other.config, "tie_word_embeddings"):
                pairs.append((tensor, other.stored[_TIED]) if folder is a else (other.stored[_TIED], tensor))
            else:
                differences.append(f"{name} is only in {folder.path}")
    for x, y in pairs:
        if (x.shape, x.dtype) == (y.shape, y.dtype):
            comparable.append((x, y))
        else:
            differences.append(f"{x.name} is {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}")
    casts = [(x, y) for x, y in pairs if x.shape == y.shape and x.dtype != y.dtype]
    if len(casts) > 1:
        x, y = casts[0]
        raise UserError(
            f"{len(casts):,} of {len(pairs):,} tensors of {a.path} have another dtype than in {b.path}, such as "
            f"{x.name} ({x.dtype} and {y.dtype}): bits are compared, so a cast cannot be verified; convert without "
            "--dtype"
        )
    total = sum(x.num_bytes for x, _ in comparable)
    meter = Meter(f"{a.path} and {b.path}", total)
    meter.start(0)
    try:
        with ThreadPoolExecutor(DEFAULT_THREADS) as pool:
            counts = pool.map(lambda pair: _count_differing_bytes((a, b), pair, meter), comparable)
            for (x, _), count in zip(comparable, counts, strict=True):
                if count:
                    differences.append(f"{x.name} differs in {count:,} of {x.num_bytes:,} bytes")
    finally:
        meter.end()
    return Comparison(len(pairs), total, differences)


def _count_differing_bytes(folders: Sequence[ModelFolder], pair: Sequence[StoredTensor], meter: Meter) -> int:
    count = 0
    for start, stop in _blocks(pair[0]):
        blocks = np.empty((2, stop - start, pair[0].row_bytes), dtype=np.uint8)
        for folder, stored, block in zip(folders, pair, blocks, strict=True):
            folder.files.read(stored, start, stop, block)
        count += int(np.count_nonzero(blocks[0] != blocks[1]))
        meter.advance(blocks[0].nbytes)
    return count


def _blocks(stored: StoredTensor) -> Iterator[tuple[int, int]]:
    step = max(1, _BLOCK_BYTES // max(1, stored.row_bytes))
    for start in range(0, stored.num_rows if stored.row_bytes else 0, step):
        yield start, min(start + step, stored.num_rows)
