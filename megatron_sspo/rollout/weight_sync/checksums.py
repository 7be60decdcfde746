"""Checks that servers hold the weights that were sent, by checksums per tensor that SGLang computes too."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.weight_sync.session import NamedTensor, SyncSession
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.fp8 import SCALE_SUFFIX, dequantize

# SGLang fuses some tensors of a checkpoint into one, in this order, and shards each of them over tensor-parallel ranks
# along a dimension: (name in the checkpoint, name in SGLang, place in the fused tensor, dimension)
_Rules = tuple[tuple[str, str, int, int | None], ...]
_ATTENTION: _Rules = (
    (r"\.q_proj\.", ".qkv_proj.", 0, 0),
    (r"\.k_proj\.", ".qkv_proj.", 1, 0),
    (r"\.v_proj\.", ".qkv_proj.", 2, 0),
)
_LATENT_ATTENTION: _Rules = (
    (r"\.(q|q_b|kv_b)_proj\.", r".\1_proj.", 0, 0),
    (r"\.q_a_proj\.", ".fused_qkv_a_proj_with_mqa.", 0, None),
    (r"\.kv_a_proj_with_mqa\.", ".fused_qkv_a_proj_with_mqa.", 1, None),
)
_RULES: _Rules = (
    (r"\.experts\.(\d+)\.(?:gate_proj|w1)\.weight$", ".experts.w13_weight", 0, 0),
    (r"\.experts\.(\d+)\.(?:up_proj|w3)\.weight$", ".experts.w13_weight", 1, 0),
    (r"\.experts\.(\d+)\.(?:down_proj|w2)\.weight$", ".experts.w2_weight", 0, 1),
    (r"\.gate_proj\.", ".gate_up_proj.", 0, 0),
    (r"\.up_proj\.", ".gate_up_proj.", 1, 0),
    (r"\.(o_proj|down_proj)\.weight$", r".\1.weight", 0, 1),
    (r"^(model\.embed_tokens|lm_head)\.weight$", r"\1.weight", 0, 0),
)
_NUM_PARTS = {
    ".qkv_proj.": 3,
    ".gate_up_proj.": 2,
    ".experts.w13_weight": 2,
    ".fused_qkv_a_proj_with_mqa.": 2,
}
# SGLang pads with zeros to these multiples: the rows of embeddings; on a CPU also the width of an MLP per rank
_VOCABULARY_MULTIPLE, _CPU_MLP_MULTIPLE = 64, 32
_SHOWN = 3  # names in a message


class Checksums:
    """Computes checksums of a stream of tensors with Hugging Face names, and compares them with those of servers.

    SGLang's checksum of an FP8 weight is that of values · scales in bfloat16, and so it is here.

    Args:
        config: the content of config.json, for the numbers of experts and key-value heads.
        tp_size: the number of tensor-parallel ranks of a server.
        dtype: the dtype that the servers keep weights in; None if it is the dtype that is sent.
        on_gpu: whether the servers are on GPUs, where SGLang computes another checksum; None if they are where this
            process is.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        tp_size: int = 1,
        dtype: torch.dtype | None = None,
        on_gpu: bool | None = None,
    ) -> None:
        family = load_family(config)
        fields = family.transformer_fields(config)  # with the family's defaults, as in SGLang
        names = family.expert_names
        # SGLang keeps a router that has a bias in float32, and so the bias
        self._in_float32 = (f".{names.router}.weight", f".{names.bias}") if names and names.bias else ()
        attention = _ATTENTION
        if fields.get("multi_latent_attention"):  # queries without a latent leave the other one alone
            attention = _LATENT_ATTENTION if fields["q_lora_rank"] else _LATENT_ATTENTION[:1]
        self._rules = attention + _RULES
        self._num_experts: int = fields.get("num_moe_experts", 0)
        self._num_key_value_heads: int = fields["num_query_groups"]
        self._tp_size, self._dtype = tp_size, dtype
        on_gpu = torch.cuda.is_available() if on_gpu is None else on_gpu
        self._digest = digest_on_gpu if on_gpu else digest_on_cpu
        self._mlp_multiple = 1 if on_gpu else _CPU_MLP_MULTIPLE
        self._parts: dict[str, dict[int, Tensor]] = {}  # incomplete fused tensors: name -> place -> part
        self._values: dict[str, Tensor] = {}  # FP8 weights whose scales have not come yet
        self._found: list[dict[str, str]] = [{} for _ in range(tp_size)]

    def observe(self, tensors: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        """Yields the stream unchanged and computes its checksums."""
        for name, tensor in tensors:
            weight = name.removesuffix(SCALE_SUFFIX)
            if tensor.dtype == torch.float8_e4m3fn:
                self._values[name] = tensor
            elif weight in self._values:
                self._add(weight, dequantize(self._values.pop(weight), tensor, torch.bfloat16))
            else:
                dtype = torch.float32 if name.endswith(self._in_float32) else self._dtype
                self._add(name, tensor.detach() if dtype is None else tensor.detach().to(dtype))
            yield name, tensor

    def compare(self, session: SyncSession) -> None:
        """Compares the checksums with those of all servers, unless no tensors came, as with adapters alone.

        Raises:
            UserError: a server holds other weights, or weights that cannot be compared.
        """
        if not self._found[0]:
            return
        for key, answer in session.post("/weights_checker", {"action": "checksum"}).items():
            url = session.servers[key].url
            found = {rank["parallelism_info"][0]["tp_rank"]: rank["checksums"] for rank in answer["ranks"]}
            if found.keys() != set(range(self._tp_size)) or len(answer["ranks"]) != self._tp_size:
                raise UserError(
                    f"the weights of {url} cannot be compared: it has {len(answer['ranks'])} ranks, and the trainer "
                    f"computed checksums for tp_size={self._tp_size}: set rollouts.options.server.tp_size, and no "
                    "other parallelism, or rollouts.options.verify_every=0"
                )
            for rank, theirs in found.items():
                self._compare(url, self._found[rank], theirs)

    def _compare(self, url: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        wrong = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if wrong:
            raise UserError(
                f"the server {url} holds other weights than it was sent: {len(wrong)} of {len(ours)} tensors differ, "
                f"{', '.join(wrong[:_SHOWN])} among them. If it keeps weights in another layout or type on purpose, "
                "set rollouts.options.verify_every=0"
            )

    def _add(self, name: str, tensor: Tensor) -> None:
        fused, place, dimension = name, 0, None
        for pattern, replacement, order, shard_dim in self._rules:
            if match := re.search(pattern, name):
                fused, place, dimension = re.sub(pattern, replacement, name), order, shard_dim
                if "experts" in pattern:
                    place += int(match[1]) * _num_parts(fused)
                break
        count = _num_parts(fused) * (self._num_experts if ".experts.w" in fused else 1)
        parts = self._parts.setdefault(fused, {})
        parts[place] = tensor.clone() if count > 1 else tensor  # the stream may reuse its memory
        if len(parts) == count:
            del self._parts[fused]
            for rank in range(self._tp_size):
                self._found[rank][fused] = self._digest(self._shard_fused(fused, parts, dimension, rank))

    def _shard_fused(self, name: str, parts: Mapping[int, Tensor], dimension: int | None, rank: int) -> Tensor:
        """Returns a rank's shard of one of SGLang's tensors."""
        shards = [self._shard(name, place, parts[place], dimension, rank) for place in sorted(parts)]
        if ".experts.w" not in name:
            return torch.cat(shards) if len(shards) > 1 else shards[0]
        per_expert = _num_parts(name)
        experts = [torch.cat(shards[start : start + per_expert]) for start in range(0, len(shards), per_expert)]
        return torch.stack(experts)

    def _shard(self, name: str, place: int, part: Tensor, dimension: int | None, rank: int) -> Tensor:
        size = self._tp_size
        if dimension is None:
            return part
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            part = _pad(part, dimension, _VOCABULARY_MULTIPLE)
        if ".qkv_proj." in name and place > 0 and self._num_key_value_heads < size:
            heads, copies = self._num_key_value_heads, size // self._num_key_value_heads
            return part.chunk(heads, dimension)[rank // copies]
        if ".experts.w" in name:  # SGLang shards experts before it pads them
            return _pad(part.chunk(size, dimension)[rank], dimension, self._mlp_multiple)
        if ".gate_up_proj." in name or ".down_proj." in name:
            part = _pad(part, dimension, self._mlp_multiple * size)
        return part.chunk(size, dimension)[rank]


def _pad(part: Tensor, dimension: int, multiple: int) -> Tensor:
    missing = list(part.shape)
    missing[dimension] = -part.shape[dimension] % multiple
    return torch.cat([part, part.new_zeros(missing)], dimension)


def _num_parts(name: str) -> int:
    return next((count for part, count in _NUM_PARTS.items() if part in name), 1)


def digest_on_cpu(tensor: Tensor) -> str:
    """Returns the first 8 bytes of SHA-256 over the tensor's bytes, in hexadecimal."""
    content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.tobytes()).hexdigest()[:16]


_WORD = 0xFFFFFFFF
_SEED = 0x243F6A88
_TILE = 8192  # words that are summed before they are mixed


def digest_on_gpu(tensor: Tensor) -> str:
    """Returns SGLang's GPU hash: 32-bit words are mixed with their positions, summed by tile, mixed and summed again.

    Source: sglang 0.5.23, kernels/ops/memory/gpu_tensor_hash.py.
    """
    content = tensor.contiguous().reshape(-1).view(torch.uint8)
    content = torch.cat([content, content.new_zeros(-len(content) % 4)])
    words = content.view(torch.int32)
    count = len(words)
    if not count:
        return f"{0:016x}"
    seeds = _SEED, (_SEED * 0x9E3779B1 ^ 0xDEADBEEF) & _WORD
    total = 0
    for start in range(0, count, 128 * _TILE):
        some = words[start : start + 128 * _TILE].long() & _WORD
        index = torch.arange(start, start + len(some), device=some.device) & _WORD
        halves = []
        for seed, factor, rotation in zip(seeds, (0x27D4EB2D, 0x165667B1), (15, 13), strict=True):
            place = ((index * factor + seed) ^ (index << rotation | index >> 32 - rotation)) & _WORD
            mixed = _mix(some ^ place)
            tiles = torch.nn.functional.pad(mixed, (0, -len(mixed) % _TILE)).view(-1, _TILE).sum(dim=1) & _WORD
            halves.append(_mix(tiles ^ (4 * count & _WORD)))
        total += sum((high << 32) + low for high, low in zip(*(half.tolist() for half in halves), strict=True))
    return f"{_mix64(total & 0xFFFFFFFFFFFFFFFF):016x}"


def _mix(x: Tensor) -> Tensor:
    """Applies MurmurHash3's 32-bit finalizer."""
    x = x ^ x >> 16
    x = x * 0x85EBCA6B & _WORD
    x = x ^ x >> 13
    x = x * 0xC2B2AE35 & _WORD
    return x ^ x >> 16


def _mix64(x: int) -> int:
    """Applies SplitMix64's finalizer."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31
