"""Gated delta nets, the linear attention of Qwen3-Next, for packed sequences.

A head keeps a state S [d_k, d_v], which is 0 where a sequence begins. With the decay α_t = exp(g_t) and the rate β_t,

    S_t = α_t S_{t-1} + β_t k_t (v_t - α_t S_{t-1}ᵀ k_t)ᵀ,    o_t = S_tᵀ q_t / √d_k.

Megatron's own module refuses packed sequences before release 0.19, and has no path without CUDA's kernels.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint, sharded_state_dict_default
from torch.utils.checkpoint import checkpoint

try:
    from fla.modules.convolution import causal_conv1d  # pyright: ignore[reportMissingImports]
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore[reportMissingImports]
except ImportError:
    causal_conv1d = chunk_gated_delta_rule = None

_CHUNK = 64  # tokens, as in the kernels


def put_delta_nets(spec: Any, transformer: Any, stage: int | None, norm: type) -> None:
    """Puts gated delta nets in place of attention into the layers of this pipeline stage that have one."""
    first = get_transformer_layer_offset(transformer, vp_stage=stage)
    spec.layer_specs = list(map(copy.deepcopy, spec.layer_specs))  # layers that are alike are one object
    for number, layer in enumerate(spec.layer_specs, first):
        if transformer.linear_attention_freq[number]:
            layer.submodules.input_layernorm = norm  # Transformer Engine's spec fuses it into linear_qkv,
            layer.submodules.sharded_state_dict_keys_map.pop("input_layernorm.", None)  # and the local one says so
            layer.submodules.self_attention = ModuleSpec(module=GatedDeltaNet)


class GatedDeltaNet(MegatronModule):
    """The layer, with the parameters of Transformers' one; tensor-parallel ranks hold ranges of key heads.

    The rows of its input projections and of its convolution's weight are those of one key head after the other.
    """

    def __init__(self, config: Any, layer_number: int, **_: Any) -> None:
        super().__init__(config=config)
        shards = config.tensor_model_parallel_size
        self.key_heads = config.linear_num_key_heads // shards
        self.key_dim, self.value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        self.ratio = config.linear_num_value_heads // config.linear_num_key_heads  # value heads of a key head
        values = config.linear_num_value_heads * self.value_dim
        whole = 2 * (config.linear_num_key_heads * self.key_dim + values)
        options: dict[str, Any] = {"config": config, "bias": False, "is_expert": False}
        columns = {**options, "init_method": config.init_method, "gather_output": False, "skip_bias_add": False}
        self.in_proj_qkvz = ColumnParallelLinear(config.hidden_size, whole, **columns)
        self.in_proj_ba = ColumnParallelLinear(config.hidden_size, 2 * config.linear_num_value_heads, **columns)
        heads, dtype = self.key_heads * self.ratio, config.params_dtype
        channels = (whole - values) // shards
        self.conv_weight = torch.nn.Parameter(torch.zeros(channels, 1, config.linear_conv_kernel_dim, dtype=dtype))
        self.dt_bias = torch.nn.Parameter(torch.ones(heads, dtype=dtype))
        self.A_log = torch.nn.Parameter(torch.zeros(heads, dtype=dtype))
        for parameter in (self.conv_weight, self.dt_bias, self.A_log):
            parameter.tensor_model_parallel = True  # pyright: ignore[reportAttributeAccessIssue]
        self.out_norm = torch.nn.RMSNorm(self.value_dim, eps=config.layernorm_epsilon, dtype=dtype)
        self.out_norm.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore
        self.out_proj = RowParallelLinear(
            values,
            config.hidden_size,
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
            **options,
        )

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Any = None, *, packed_seq_params: Any, **_: Any
    ) -> tuple[torch.Tensor, None]:
        """Returns the output for hidden states [T, 1, hidden_size] of packed sequences, and no bias."""
        qkvz = self.in_proj_qkvz(hidden_states)[0][:, 0].unflatten(1, (self.key_heads, -1))  # [T, heads, ...]
        ba = self.in_proj_ba(hidden_states)[0][:, 0].unflatten(1, (self.key_heads, -1))
        values = self.ratio * self.value_dim
        mixed, z = qkvz.split([2 * self.key_dim + values, values], dim=2)
        rate, a = (part.flatten(1) for part in ba.split(self.ratio, dim=2))
        decay = -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias)
        arguments = mixed.flatten(1), decay, rate.sigmoid(), packed_seq_params.cu_seqlens_q
        if chunk_gated_delta_rule is None or not mixed.is_cuda or mixed.dtype == torch.float32:  # which they refuse
            found = checkpoint(self._by_torch, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            found = self._by_kernels(*arguments)  # [T, heads, d_v]
        gate = F.silu(z.unflatten(2, (self.ratio, -1)).flatten(1, 2).float())
        gated = (self.out_norm(found) * gate).type_as(found)
        return self.out_proj(gated.flatten(1)[:, None])[0], None

    def _split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns queries, keys and values [T, value heads, d], the first two for each of their value heads."""
        by_head = mixed.unflatten(1, (self.key_heads, -1))
        q, k, v = by_head.split([self.key_dim, self.key_dim, self.ratio * self.value_dim], dim=2)
        q, k = (part.repeat_interleave(self.ratio, dim=1) for part in (q, k))
        return q, k, v.unflatten(2, (self.ratio, -1)).flatten(1, 2)

    def _by_torch(
        self, mixed: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor, borders: torch.Tensor
    ) -> torch.Tensor:
        """Computes all sequences by torch. No state passes from one to the next."""
        lengths, token, width = borders.diff(), torch.arange(len(mixed), device=mixed.device), self.conv_weight.shape[2]
        sequence = torch.arange(len(lengths), device=mixed.device).repeat_interleave(lengths)
        places = token + (width - 1) * (sequence + 1)  # after zeros before each sequence
        channels = _spread(mixed, places, len(mixed) + (width - 1) * len(lengths)).T[None]
        convolved = F.conv1d(channels, self.conv_weight, groups=channels.shape[1])[0].T[places - width + 1]
        q, k, v = self._split(F.silu(convolved))
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q.float(), k.float()))
        counts = (lengths + _CHUNK - 1) // _CHUNK
        firsts = counts.cumsum(0) - counts
        places = token + (_CHUNK * firsts - borders[:-1])[sequence]
        q, k, v, decay, rate = (
            _spread(x, places, _CHUNK * int(counts.sum())).unflatten(0, (-1, _CHUNK)).transpose(1, 2)
            for x in (q * self.key_dim**-0.5, k, v.float(), decay, rate.float())
        )
        found = _delta_rule(q, k, v, decay, rate, {*firsts.tolist()})
        return found.transpose(1, 2).flatten(0, 1)[places].type_as(mixed)

    def _by_kernels(
        self, mixed: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor, borders: torch.Tensor
    ) -> torch.Tensor:
        """Computes all sequences by the kernels of flash-linear-attention."""
        assert causal_conv1d is not None and chunk_gated_delta_rule is not None
        weight = self.conv_weight[:, 0]
        convolved = causal_conv1d(mixed[None], weight, activation="silu", cu_seqlens=borders)[0]
        return chunk_gated_delta_rule(
            *(part[None] for part in self._split(convolved[0])),
            g=decay[None],
            beta=rate[None],
            cu_seqlens=borders,
            use_qk_l2norm_in_kernel=True,
        )[0][0]

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None, **_: Any
    ) -> dict[str, Any]:
        """Returns the layer's entries of a checkpoint."""
        own: dict[str, Any] = {}
        self._save_to_state_dict(own, "", keep_vars=True)
        axes = dict.fromkeys(own, 0)
        group: Any = parallel_state.get_tensor_model_parallel_group()
        found = make_sharded_tensors_for_checkpoint(own, prefix, axes, sharded_offsets)
        for name, module in self.named_children():
            found |= sharded_state_dict_default(module, f"{prefix}{name}.", sharded_offsets, metadata, group)
        return found


def _spread(x: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
    """Returns `size` rows, of which those at `places` are the rows of x, and the others zero."""
    return x.new_zeros(size, *x.shape[1:]).index_copy(0, places, x)


def _delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor, firsts: set[int]
) -> torch.Tensor:
    """Returns the outputs [chunks, heads, tokens, d] of the chunks of all sequences.

    With G the decays' running sum, D_ij = exp(G_i - G_j) for i >= j, and S the state before a chunk, the rows that the
    chunk adds to the state solve (I + β (K Kᵀ ⊙ D) below the diagonal) X = β (V - exp(G) K S).

    Args:
        q, k, v: [chunks, heads, tokens, d]; decay, rate: [chunks, heads, tokens].
        firsts: the chunks with which a sequence begins.
    """
    total = decay.cumsum(-1)
    passed = (total[..., None] - total[..., None, :]).tril().exp().tril()
    scaled = k * rate[..., None]
    targets = torch.cat([v * rate[..., None], scaled * total.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(scaled @ k.mT * passed, targets, upper=False, unitriangular=True)
    added, taken = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    weights, q = q @ k.mT * passed, q * total.exp()[..., None]
    k, kept = k * (total[..., -1:] - total).exp()[..., None], total[..., -1, None, None].exp()
    state, outputs = q.new_zeros(q.shape[1], q.shape[3], v.shape[3]), []
    for at in range(len(q)):
        state = torch.zeros_like(state) if at in firsts else state
        new = added[at] - taken[at] @ state
        outputs.append(q[at] @ state + weights[at] @ new)
        state = state * kept[at] + k[at].mT @ new
    return torch.stack(outputs)
