"""Real servers that load FP8 by SGLang's own code; their products are of a stand-in (`fp8_on_cpu`)."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engines import embedded, sglang
from megatron_sspo.rollout.servers.process import find_python
from tests.policy import tiny_policy
from tests.policy.tiny_policy import TEMPERATURE
from tests.rollout.test_embedded import teacher_forced
from tests.sglang import served


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A mixture of experts of sizes that 128 divides: SGLang fuses whole blocks, and checks whole blocks of columns."""
    found = tiny_policy.save("moe", tmp_path_factory.mktemp("fp8") / "model")
    sizes = {"vocab_size": tiny_policy.VOCAB_SIZE, "hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 128}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": None}
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(initializer_range=0.1, **sizes, **heads, **experts, **ends))
    model.to(torch.bfloat16).save_pretrained(found)
    return found


@pytest.fixture(scope="module")
def owner(folder, tmp_path_factory):
    """An engine with a server in FP8."""
    python = tmp_path_factory.mktemp("python") / "python"
    stand_in = Path(__file__).with_name("fp8_on_cpu")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={stand_in} exec {find_python(None).absolute()} "$@"\n')
    python.chmod(0o700)
    engine = sglang.engine(
        folder, run_folder=python.parent, quantize="fp8", verify_every=1, routes=True, python=str(python)
    )
    yield engine
    engine.close()


def test_log_probs_are_those_of_the_rounded_weights(owner, folder):
    """SGLang computes with 16 bits beside FP8, so they agree in the mean alone; other weights are far away."""
    owner.load_weights(served.weights(folder), 0)  # with a check of every tensor
    groups = served.generate(owner, served.PROMPTS[:4], served.SAMPLING, group_size=2, seed=0)
    mean = {}
    for quantize in ("fp8", ""):
        engine = embedded.engine(folder, quantize=quantize)
        engine.load_weights(served.weights(folder), 0)
        differences = [
            teacher_forced(engine._decoder.model, group, rollout, TEMPERATURE, 1.0)
            - torch.tensor(rollout.rollout_log_probs)
            for group in groups
            for rollout in group.rollouts
        ]
        mean[quantize] = float(torch.cat(differences).abs().mean())
    print("mean difference of a token's log-prob to the server's:", mean)
    assert mean["fp8"] < 0.5 * mean[""]


@pytest.mark.parametrize("transport", ["tensor", "distributed", "disk"])
def test_the_server_holds_what_was_sent(owner, folder, tmp_path, monkeypatch, transport):
    monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", owner.key)
    urls = [server.client.url for server in owner.pool.servers]
    options = {"urls": urls, "run_folder": tmp_path, "transport": transport, "verify_every": 1, "bucket_bytes": 50_000}
    options["server"] = {"dtype": "bfloat16"}
    for quantize in ("fp8", ""):
        engine = sglang.engine(folder, quantize=quantize, **options)
        try:
            if quantize:
                engine.load_weights(served.weights(folder, 2.0), 0)
            else:  # SGLang reports no error
                with pytest.raises(UserError, match="holds other weights than it was sent"):
                    engine.load_weights(served.weights(folder, 3.0), 1)
        finally:
            engine.close()
