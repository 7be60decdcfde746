"""Compares conversion with Megatron-Bridge's, tensor by tensor and both ways. Needs `make test-bridge`'s environment.

Megatron-Bridge imports Transformer Engine in one module, whether or not it is used; here that module gets a stand-in.
"""

import importlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_sspo.policy.model import build_chunks, transformer_config
from megatron_sspo.policy.without_cuda import patches
from megatron_sspo.run import Parallel
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.hf_folder import HFFolder
from tests.weights import tiny_checkpoints


@pytest.fixture(scope="module", autouse=True)
def one_process():
    from megatron.core import parallel_state, tensor_parallel

    patches.install()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def bridge(one_process: None) -> Any:
    """Imports Megatron-Bridge, whose adapters alone need Transformer Engine's classes, as bases."""
    import megatron
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer

    root = next(path for path in map(Path, megatron.__path__) if (path / "bridge").is_dir())
    stand_ins = {name: types.ModuleType(name) for name in ("transformer_engine", "transformer_engine.pytorch")}
    stand_ins["transformer_engine.pytorch"].__dict__.update(
        Linear=torch.nn.Linear, ops=types.SimpleNamespace(Sequential=torch.nn.Sequential)
    )
    stand_ins["transformer_engine"].__dict__.update(pytorch=stand_ins["transformer_engine.pytorch"])
    for name in ("megatron.bridge", "megatron.bridge.peft"):  # so that their __init__ does not run under the stand-in
        stand_ins[name] = types.ModuleType(name)
        stand_ins[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    sys.modules.update(stand_ins)
    importlib.import_module("megatron.bridge.peft.lora_layers")
    for name in stand_ins:
        del sys.modules[name]
    found = importlib.import_module("megatron.bridge")
    mapping = importlib.import_module("megatron.bridge.models.conversion.param_mapping")
    mapping.AutoMapping.register_module_type("PackedAttention", "column")  # modules of the policy, with stock names
    mapping.AutoMapping.register_module_type("_Duplicated", "replicated")
    mlp, names = "model.layers.*.mlp", ("gate_proj", "up_proj", "down_proj")
    _name_single_experts(mapping, "glm.glm45_bridge:GLM45Bridge", mlp, *names)
    moe, names = "model.layers.*.block_sparse_moe", ("w1", "w3", "w2")
    _name_single_experts(mapping, "minimax_m2.minimax_m2_bridge:MiniMaxM2Bridge", moe, *names)
    return found


def _name_single_experts(mapping: Any, registered: str, hf: str, gate: str, up: str, down: str) -> None:
    """Adds the names that experts have without grouped kernels, which Megatron-Bridge 0.6.2 lacks for some families."""
    module, name = registered.split(":")
    family = getattr(importlib.import_module(f"megatron.bridge.models.{module}"), name)
    stock, megatron, hf = (
        family.mapping_registry,
        "decoder.layers.*.mlp.experts.local_experts.*.linear_",
        f"{hf}.experts.*",
    )

    def registry(self: Any) -> Any:
        found = stock(self)
        gated = mapping.GatedMLPMapping(
            megatron_param=f"{megatron}fc1.weight", gate=f"{hf}.{gate}.weight", up=f"{hf}.{up}.weight"
        )
        down_mapping = mapping.AutoMapping(megatron_param=f"{megatron}fc2.weight", hf_param=f"{hf}.{down}.weight")
        return type(found)(*found.mappings, gated, down_mapping)

    family.mapping_registry = registry


@pytest.mark.parametrize(
    "kind",
    [
        "qwen3_moe",
        "qwen3",
        "qwen2",
        "llama",
        "llama_tied",
        "glm4_moe",
        "glm4_moe_lite",
        "deepseek_v3",
        "gpt_oss",
        "minimax_m2",
    ],
)
def test_both_convert_alike(bridge, tmp_path, kind):
    from megatron.core import dist_checkpointing

    tiny_checkpoints.save(kind, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ours")
    source = HFFolder(tmp_path / "hf")
    family = load_family(source.config)
    config = transformer_config(family, source.config, Parallel(), torch.float32, {})
    (model,) = build_chunks(family, source.config, config)
    theirs = bridge.AutoBridge.from_hf_pretrained(str(tmp_path / "hf"))
    theirs.load_hf_weights([model])
    found = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    expected = {name: tensor.clone() for name, tensor in found.items()}
    (tmp_path / "theirs").mkdir()
    dist_checkpointing.save(model.sharded_state_dict(), str(tmp_path / "theirs"))
    for tensor in found.values():
        tensor.fill_(float("nan"))
    model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), str(tmp_path / "ours")))
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name

    convert(tmp_path / "theirs", tmp_path / "back", config_folder=tmp_path / "hf")
    back = HFFolder(tmp_path / "back")
    assert back.stored.keys() == source.stored.keys()
    for name in source.stored:
        assert torch.equal(back.read(name), source.read(name)), name
