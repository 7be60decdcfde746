"""Weights that are sent in FP8: what arrives at a server is the folder that `convert --quantize fp8` writes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from megatron_sspo.rollout.engines import sglang
from megatron_sspo.rollout.servers.build import build_servers
from megatron_sspo.rollout.servers.options import Options
from megatron_sspo.rollout.weight_sync.checksums import Checksums
from megatron_sspo.weights.conversion.convert import quantize
from megatron_sspo.weights.formats.open_folder import open_folder
from tests.policy.launcher import launch
from tests.rollout import fp8_senders, tiny_models
from tests.rollout.test_released_memory import recording_server


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A mixture of experts in bfloat16, of odd sizes: shards and the ends of tensors cut blocks of 128."""
    sizes = {"vocab_size": tiny_models.VOCAB_SIZE, "hidden_size": 161, "num_hidden_layers": 2, "intermediate_size": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 48}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 143, "norm_topk_prob": True}
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(initializer_range=0.1, **sizes, **heads, **experts))
    folder = tmp_path_factory.mktemp("fp8") / "source"
    model.to(torch.bfloat16).save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(source):
    quantize(source, source.parent / "fp8")
    return source.parent / "fp8"


@pytest.fixture(scope="module")
def sent(source):
    file = source.parent / "found.json"
    launch(Path(fp8_senders.__file__), 2, source, file)
    return json.loads(file.read_text())


@pytest.mark.parametrize("transport", fp8_senders.TRANSPORTS)
def test_what_arrives_is_the_folder_in_fp8_to_the_bit(sent, folder, transport):
    stored = load_file(folder / "model.safetensors")
    found = sent[transport]
    assert found["digests"] == {name: fp8_senders.digest(tensor) for name, tensor in stored.items()}
    assert found["size"] == sent["size"] == sum(tensor.nbytes for tensor in stored.values())
    with open_folder(folder) as dequantized:  # what SGLang computes the checksums of
        checksums = Checksums(dequantized.config, dtype=torch.bfloat16)
        for _ in checksums.observe((name, dequantized.read(name)) for name in dequantized.shapes()):
            pass
    assert found["checksums"] == checksums._found[0]


def test_the_engine_sends_fp8(source, folder, submit):
    with recording_server([], submit) as url:
        engine = sglang.engine(source, urls=[url], verify_every=0, quantize="fp8")
        engine.load_weights(load_file(source / "model.safetensors").items(), 0)
        found = engine.metrics()["sync/gigabytes"]
        engine.close()
    assert found == sum(t.nbytes for t in load_file(folder / "model.safetensors").values()) / 1e9


def test_servers_are_started_for_what_is_sent(source, folder):
    """The trained folder may be in FP8 itself; it is read as one in bfloat16."""
    expected = json.loads((folder / "config.json").read_text())["quantization_config"]

    def override(model, **options):
        (server,) = build_servers(Options(**options), model, Path("python"), "key")
        return server.process._arguments.get("json_model_override_args")

    for model in (source, folder):
        assert json.loads(override(model, quantize="fp8")) == {"quantization_config": expected}
    assert json.loads(override(folder)) == {"quantization_config": None}
    assert override(source) is None
