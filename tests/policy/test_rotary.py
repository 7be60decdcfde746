"""Queries and keys are turned as in Megatron's layers, to the last bit, with one computation of cosines for a row."""

import pytest
import torch
from tiny_policy import make_run, read_batch

from megatron_sspo.batching.microbatch import make_microbatch
from megatron_sspo.objective import sspo
from megatron_sspo.policy.policy import Policy
from megatron_sspo.policy.shared_prompts.packed import packed_seq_params
from megatron_sspo.policy.shared_prompts.rotary import RowRotaryEmbedding, SharedRotaryEmbedding, rotate
from megatron_sspo.types import Rollout

RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTED = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}


def results(policy, model, batch):
    """Returns log-probs and the gradient."""
    found = [torch.tensor(r.old_log_probs) for group in policy.old_log_probs(batch) for r in group.rollouts]
    policy.gradient(batch, sspo())
    return found, {name: parameter.main_grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [
        ("moe", "float32", {}),
        ("one_group", "bfloat16", {}),
        ("qwen3", "float32", RECOMPUTED),
        ("moe", "float32", SELECTED),
    ],
)
def test_results_are_those_of_angles_in_every_layer(kind, dtype, options, share, folders, batches, device):
    from megatron.core.utils import unwrap_model

    batch = read_batch(batches[kind])
    policy = Policy(make_run(dtype=dtype, share_prompts=share, megatron=options), folders[kind], device)
    (chunk,) = policy.chunks
    model = unwrap_model(chunk)
    assert isinstance(model.rotary_pos_emb, RowRotaryEmbedding)
    found, gradients = results(policy, model, batch)
    model.rotary_pos_emb = SharedRotaryEmbedding(model.rotary_pos_emb)  # Megatron's layers turn queries and keys
    expected, expected_gradients = results(policy, model, batch)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    for name, gradient in expected_gradients.items():
        assert gradient.any() and torch.equal(gradients[name], gradient), name


class Group:
    """A context-parallel group of which this process plays a rank."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = lambda: rank, lambda: size


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_context_parallel_rank_turns_its_own_tokens(rank, device):
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.transformer.transformer_config import TransformerConfig

    def rollout(length: int) -> Rollout:
        return Rollout(
            tokens=(1,) * length,
            rollout_log_probs=(0.0,) * length,
            text="",
            finish_reason="stop",
            policy_version=0,
        )

    sequences = [((1,) * prompt, rollout(length)) for prompt, length in ((5, 18), (9, 2), (3, 40))]
    microbatch = make_microbatch(
        sequences, context_rank=rank, context_size=3, num_tokens=96
    )  # the last part is padding
    row, stock = packed_seq_params(microbatch), RotaryEmbedding(16, 1.0)
    assert RowRotaryEmbedding(stock, torch.float32)(row) is None
    values = torch.randn(len(microbatch.tokens), 4, 16, generator=torch.Generator().manual_seed(0))
    expected = apply_rotary_pos_emb(
        values,
        stock(microbatch.longest, packed_seq=True),
        TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4),
        cu_seqlens=row.cu_seqlens_q,
        cp_group=Group(rank, 3),  # pyright: ignore
    )
    assert torch.equal(rotate(values, row.rotation), expected)
