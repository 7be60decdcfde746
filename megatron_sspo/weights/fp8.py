"""Quantizes linear layers to FP8 as the published folders of Qwen and DeepSeek have them, and back.

A weight W [out, in] is cut into blocks of 128 × 128, the last of a row or column smaller. A block with the largest
magnitude m gets the scale s = m / 448 (1 for a block of zeros), and its elements are W / s, rounded to e4m3, whose
largest number is 448. The scales [⌈out/128⌉, ⌈in/128⌉] in float32 are a tensor `…weight_scale_inv` beside `…weight`:
what a server multiplies by. Embeddings, the output layer, norms, routers and biases stay as they are.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.files.reading import read_json
from megatron_sspo.weights.family import load_family, size
from megatron_sspo.weights.table import ParameterMap

BLOCK = 128
SCALE_SUFFIX = "_scale_inv"
_LARGEST = 448.0  # of e4m3
_LINEAR = re.compile(r"\.linear_(qkv|proj|fc1|fc2)\.weight$")  # in the table's names


def quantized_names(rows: Iterable[ParameterMap]) -> set[str]:
    """Returns the Hugging Face names of the weights that are quantized.

    Raises UserError if the experts of a layer are one tensor, of which FP8 folders know no form.
    """
    rows = list(rows)
    if any(row.is_fused for row in rows):
        raise UserError("quantize is fp8, and the model has the experts of a layer as one tensor: leave quantize out")
    return {name for row in rows if _LINEAR.search(row.name) for name in row.hf}


def quantization_config(rows: Sequence[ParameterMap]) -> dict[str, Any]:
    """Returns the content of quantization_config in config.json, with the modules that are left out by name."""
    quantized = quantized_names(rows)
    others = {name.rpartition(".")[0] for row in rows for name in (*row.hf, *row.copies)} - {
        name.rpartition(".")[0] for name in quantized
    }
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": sorted(others),
    }


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (W / s in float8_e4m3fn [out, in], s in float32 [⌈out/128⌉, ⌈in/128⌉])."""
    blocks = _blocks(weight.float())
    largest = blocks.abs().amax(dim=(1, 3))
    scales = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    values = (blocks / scales[:, None, :, None]).reshape(blocks.shape[0] * BLOCK, -1)
    return values[: weight.shape[0], : weight.shape[1]].to(torch.float8_e4m3fn), scales


def is_known(quantization: Any) -> bool:
    """Returns whether a folder's quantization_config is this one or MXFP4's, whichever modules it leaves out."""
    wanted = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    if not isinstance(quantization, dict):
        return False
    is_fp8 = all(quantization.get(key) == value for key, value in wanted.items())
    return is_fp8 or quantization.get("quant_method") == "mxfp4"


def trained_config(model_path: Path) -> dict[str, Any]:
    """Returns the content of config.json; for a folder in FP8 or MXFP4, of the bfloat16 folder that it is read as."""
    config = read_json(model_path / "config.json")
    if is_known(config.get("quantization_config")):
        del config["quantization_config"]
    return config


def trained_rows(model_path: Path) -> Sequence[ParameterMap]:
    """Returns the weight table of the model in a Hugging Face folder."""
    config = trained_config(model_path)
    return load_family(config, model_path).rows(config, size(config, "vocab_size"))


def dequantize(values: Tensor, scales: Tensor, dtype: torch.dtype, *, first: int = 0) -> Tensor:
    """Returns rows of a weight, each element times the scale of its block, rounded to `dtype`.

    The scales are those of the blocks that have the rows, of which `first` is the number of the first.
    """
    numbers = torch.arange(first, first + values.shape[0], device=values.device) // BLOCK - first // BLOCK
    of_columns = scales.float().repeat_interleave(BLOCK, dim=1)[:, : values.shape[1]]
    return (values.float() * of_columns[numbers]).to(dtype)


def quantized_stream(tensors: Iterable[tuple[str, Tensor]], names: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yields each weight of `names` as its FP8 values and its scales, and other tensors as they are."""
    for name, tensor in tensors:
        if name in names:
            values, scales = quantize(tensor)
            yield name, values
            yield f"{name}{SCALE_SUFFIX}", scales
        else:
            yield name, tensor


def rounded_stream(tensors: Iterable[tuple[str, Tensor]], names: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yields each weight of `names` with the values that a server multiplies by, in its own dtype."""
    for name, tensor in tensors:
        yield name, dequantize(*quantize(tensor), tensor.dtype) if name in names else tensor


def _blocks(matrix: Tensor) -> Tensor:
    """Returns the matrix, filled up with zeros, as [⌈out/128⌉, 128, ⌈in/128⌉, 128]."""
    rows, columns = (-size % BLOCK for size in matrix.shape)
    padded = torch.nn.functional.pad(matrix, (0, columns, 0, rows))
    return padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
