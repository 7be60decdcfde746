"""The checksums of weights that servers are compared with."""

from types import SimpleNamespace

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.weight_sync.checksums import Checksums

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 1,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("family", "heads"), [({"model_type": "llama"}, 16), ({"model_type": "mixtral", **EXPERTS}, 8)]
)
def test_absent_key_value_heads_are_the_default_of_the_family(family, heads):
    """Early models of the family llama have no `num_key_value_heads` in config.json, and Mixtral has 8 by default."""
    key = torch.arange(192.0).reshape(64, 3)
    parts = {f"model.layers.0.self_attn.{name}_proj.weight": key for name in "qkv"}
    found = []
    for config in ({**family, **SIZES}, {**family, **SIZES, "num_key_value_heads": heads}):
        checksums = Checksums(config, tp_size=16, on_gpu=False)
        assert [name for name, _ in checksums.observe(parts.items())] == list(parts)
        found.append(checksums._found)
    assert found[0] == found[1] and len(found[0][0]) == 1


@pytest.mark.parametrize("ranks", [[0], [0, 0]])
def test_every_rank_of_a_server_is_compared(ranks):
    checksums = Checksums({"model_type": "llama", **SIZES}, tp_size=2, on_gpu=False)
    for _ in checksums.observe([("model.embed_tokens.weight", torch.ones(64, 3))]):
        pass
    place = {"tp_size": 2, "pp_size": 1, "dp_size": 1}

    def compare(given):
        found = [{"checksums": checksums._found[n], "parallelism_info": [{**place, "tp_rank": n}]} for n in given]
        checksums.compare(
            SimpleNamespace(post=lambda *_: {0: {"ranks": found}}, servers={0: SimpleNamespace(url="http://a")})
        )

    compare([1, 0])
    with pytest.raises(UserError, match="the weights of http://a cannot be compared"):
        compare(ranks)
