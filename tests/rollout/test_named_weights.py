"""Loading of weights by their names on disk: every tensor is required, and goes to the right place."""

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.types import Sampling
from tests.rollout import tiny_models

EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
TOKENS = torch.arange(2, 42).view(2, 20)


@pytest.fixture(params=tiny_models.SHAPES)
def shape(request):
    return request.param


def fresh(folders, shape="qwen3_moe"):
    return embedded.engine(folders[shape]), tiny_models.weights(folders[shape])


def test_tensors_on_disk_give_the_logits_of_from_pretrained(tmp_path, folders, shape):
    engine, _ = fresh(folders, shape)
    for version, folder in enumerate((folders[shape], tiny_models.build(tmp_path, shape, seed=1))):
        engine.load_weights(tiny_models.weights(folder).items(), version)
        expected = tiny_models.reference(folder)(TOKENS).logits
        torch.testing.assert_close(engine._decoder.model(TOKENS).logits, expected, rtol=0, atol=0)


def test_the_stream_may_reuse_its_buffer_and_its_dtype_is_converted(folders):
    engine, weights = fresh(folders)
    buffer = torch.empty(max(tensor.numel() for tensor in weights.values()), dtype=torch.float64)

    def stream():
        for name, tensor in weights.items():
            yield name, buffer[: tensor.numel()].copy_(tensor.flatten()).view(tensor.shape)
            buffer.fill_(float("nan"))

    engine.load_weights(stream(), 0)
    expected = tiny_models.reference(folders["qwen3_moe"])(TOKENS).logits
    torch.testing.assert_close(engine._decoder.model(TOKENS).logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop(EXPERT), r"1 missing \(.*experts\.2\.up_proj\.weight\)"),
        (lambda w: [w.pop(name) for name in list(w)[:5]], r"5 missing \(([^,]+, ){3}\.\.\.\)"),
        (lambda w: w.update({"model.nonsense": torch.ones(1)}), r"1 unknown \(model\.nonsense\)"),
        (lambda w: w.update({EXPERT: w[EXPERT].T}), r"1 of a wrong shape \(.*proj.* \[32, 24\], expected \[24, 32\]"),
        (lambda w: w.update({"model.layers.0.mlp.experts.gate_up_proj": torch.ones(4, 48, 32)}), "1 unknown"),
    ],
)
def test_a_stream_that_does_not_fit_is_an_error_that_names_the_tensors(folders, edit, message):
    engine, weights = fresh(folders)
    engine.load_weights(weights.items(), 0)
    edit(weights)
    with pytest.raises(UserError, match=message):
        engine.load_weights(weights.items(), 1)
    with pytest.raises(UserError, match="has no weights"):
        engine.generate([tiny_models.prompt("a")], Sampling(), group_size=1, seed=0)


@pytest.mark.parametrize("first", [True, False])
def test_a_tied_output_layer_may_be_sent_and_is_the_embedding(folders, first):
    """Transformers, too, ignores what a folder has for a tensor that config.json ties to another."""
    engine, weights = fresh(folders, "llama_tied")
    assert "lm_head.weight" not in weights
    head = ("lm_head.weight", weights["model.embed_tokens.weight"] + 1)
    engine.load_weights([head, *weights.items()][:: 1 if first else -1], 0)
    expected = tiny_models.reference(folders["llama_tied"])(TOKENS).logits
    torch.testing.assert_close(engine._decoder.model(TOKENS).logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "rename", "missing"),
    [("llama_untied", None, "lm_head"), ("llama_tied", "lm_head.weight", "model.embed_tokens")],
    indirect=["shape"],
)
def test_an_embedding_and_an_untied_output_layer_are_required(folders, shape, rename, missing):
    engine, weights = fresh(folders, shape)
    left_out = weights.pop(f"{missing}.weight")
    if rename:
        weights[rename] = left_out
    with pytest.raises(UserError, match=rf"1 missing \({missing}\.weight\)"):
        engine.load_weights(weights.items(), 0)
