"""Compares two model folders of any kind, tensor by tensor and bit by bit."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from megatron_sspo.errors import os_errors_as_user_errors
from megatron_sspo.weights.conversion.convert import NUM_THREADS
from megatron_sspo.weights.conversion.progress import check_content, print_left_out, progress_bar
from megatron_sspo.weights.family import flag
from megatron_sspo.weights.formats.model_folder import ModelFolder, row_ranges
from megatron_sspo.weights.formats.open_folder import check_config_folder, open_folder

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
    `config_folder` has the config.json of a Megatron checkpoint without it. Raises UserError if one of the two cannot
    be read, or both have the config.json for which `config_folder` is.
    """
    with os_errors_as_user_errors(), open_folder(first, config_folder) as a, open_folder(second, config_folder) as b:
        check_config_folder(config_folder, a, b)
        for folder in (a, b):
            check_content(folder)
            print_left_out(folder)
        return _compare(a, b)


def _compare(a: ModelFolder, b: ModelFolder) -> Comparison:
    pairs = [(name, name) for name in a.shapes() if name in b.shapes()]
    differences, comparable = [], []
    for folder, other in ((a, b), (b, a)):
        for name in folder.shapes().keys() - other.shapes().keys():
            if name == _COPY and _TIED in other.shapes() and flag(other.config, "tie_word_embeddings"):
                pairs.append((name, _TIED) if folder is a else (_TIED, name))
            else:
                differences.append(f"{name} is only in {folder.path}")
    for x, y in pairs:
        if (a.shapes()[x], a.dtypes()[x]) == (b.shapes()[y], b.dtypes()[y]):
            comparable.append((x, y))
        else:
            differences.append(
                f"{x} is {a.dtypes()[x]} {list(a.shapes()[x])} and {b.dtypes()[y]} {list(b.shapes()[y])}"
            )
    sizes = {x: prod(a.shapes()[x]) * a.dtypes()[x].itemsize for x, _ in comparable}
    total = sum(sizes.values())
    with progress_bar(f"{a.path} and {b.path}", total) as advance, ThreadPoolExecutor(NUM_THREADS) as threads:

        def differing_bytes(pair: tuple[str, str]) -> int:
            (x, y), count = pair, 0
            for start, stop in row_ranges(a.shapes()[x], a.dtypes()[x]):
                first, second = a.read(x, 0, start, stop), b.read(y, 0, start, stop)
                first, second = first.view(-1).view(torch.uint8), second.view(-1).view(torch.uint8)
                count += 0 if torch.equal(first, second) else int((first != second).sum())
                advance(len(first))
            return count

        for (x, _), count in zip(comparable, threads.map(differing_bytes, comparable), strict=True):
            if count:
                differences.append(f"{x} differs in {count:,} of {sizes[x]:,} bytes")
    return Comparison(len(pairs), total, differences)
