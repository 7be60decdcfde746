"""Loads a converted checkpoint into Megatron's own model, with Megatron's own functions."""

import pytest
import torch
from tiny_policy import VOCAB_SIZE

from megatron_sspo.policy.model import transformer_config
from megatron_sspo.policy.names import logical_parameters
from megatron_sspo.run import Parallel
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.hf_folder import HFFolder


@pytest.mark.parametrize(
    "kind", ["moe", "moe_odd", "mixtral", "dense", "tied", "qwen3", "qwen2", "glm4", "glm4_odd", "gpt_oss"]
)
@pytest.mark.parametrize("padded", [VOCAB_SIZE, 128])
def test_loads_every_parameter(folders, device, tmp_path, kind, padded):
    from megatron.core import dist_checkpointing
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    convert(folders[kind], tmp_path / "megatron")
    source = HFFolder(folders[kind])
    family = load_family(source.config)
    config = transformer_config(family, source.config, Parallel(), torch.float32, {})
    fields = {**family.model_fields(source.config), "vocab_size": padded}
    fields.pop("rotary_frequencies", None)  # no parameters
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="RMSNorm"
        ),
        **fields,
    )
    for _, parameter in logical_parameters([model]):
        parameter.data.fill_(float("nan"))
    model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), str(tmp_path / "megatron")))
    rows = {row.name: row for row in family.rows(source.config, padded)}
    found = dict(logical_parameters([model]))
    assert found.keys() == rows.keys()
    for name, parameter in found.items():
        assert torch.equal(parameter, rows[name].to_megatron(source.read, 0, 1)), name
