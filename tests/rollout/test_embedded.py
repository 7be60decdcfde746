"""The embedded engine: its log-probs are the model's, and a response does not depend on the rest of the batch."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from megatron_sspo.batching.routes import RouterShape, unpack_routes
from megatron_sspo.config.resolve import resolve
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.collect import start_generation
from megatron_sspo.rollout.embedded.sampling import log_distribution
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.rollout.requests.format import RequestFormat
from megatron_sspo.rollout.stopping import text_of
from megatron_sspo.types import Sampling
from megatron_sspo.weights import fp8
from tests.rollout import tiny_models
from tests.rollout.tiny_models import EOS, prompt

PROMPTS = [prompt("1+1="), prompt("a much longer question?"), prompt("x"), prompt("12*3="), prompt("why so?")]


@pytest.fixture(params=tiny_models.SHAPES)
def shape(request):
    return request.param


def responses(groups):
    return [[(tuple(r.tokens.tolist()), r.text, r.finish_reason) for r in group.rollouts] for group in groups]


def teacher_forced(model, group, rollout, temperature, top_p):
    """Computes log p of each response token by a plain forward pass of one row, without cache or padding."""
    tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens]])
    start = len(group.prompt.tokens)
    log_probs = log_distribution(
        model(tokens, use_cache=False).logits[0, start - 1 : -1], Sampling(temperature=temperature, top_p=top_p)
    )
    return log_probs.gather(-1, tokens[0, start:, None]).squeeze(-1)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.3, 0.9), (1.0, 0.4), (0.0, 1.0)])
def test_log_probs_are_those_of_a_plain_forward_pass(loaded, folders, shape, temperature, top_p):
    """Checks padding and cache, too: prompts have different lengths, and rows end at different steps."""
    sampling = Sampling(max_tokens=20, temperature=temperature, top_p=top_p, stop=("a", "7"))
    groups = loaded[shape].generate(PROMPTS, sampling, group_size=6, seed=5)
    model = tiny_models.reference(folders[shape])
    assert len({len(rollout.tokens) for group in groups for rollout in group.rollouts}) > 1
    for group in groups:
        for rollout in group.rollouts:
            expected = teacher_forced(model, group, rollout, temperature, top_p)
            torch.testing.assert_close(torch.tensor(rollout.rollout_log_probs), expected, rtol=0, atol=1e-5)


def plain_routes(model, group, rollout):
    """Returns the experts of all tokens but the last by a plain forward pass of one row: [tokens, layers, topk]."""
    tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens]])[:, :-1]
    mlps = [layer.mlp for layer in model.model.layers]
    gates = [getattr(mlp, name) for mlp in mlps for name in ("gate", "router") if hasattr(mlp, name)]
    logits = []
    hooks = [gate.register_forward_hook(lambda _, __, output: logits.append(output[0])) for gate in gates]
    model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    biases = [getattr(gate, "e_score_correction_bias", 0) for gate in gates]
    return torch.stack([(of.sigmoid() + bias).topk(2).indices for of, bias in zip(logits, biases, strict=True)], dim=1)


@pytest.mark.parametrize(("kind", "num_layers"), [("qwen3_moe", 2), ("glm4_moe", 1), ("gpt_oss", 2)])
def test_routes_are_those_of_a_plain_forward_pass(tmp_path, folders, kind, num_layers):
    folder = tiny_models.build(tmp_path, kind)
    engine = embedded.engine(folder, max_batch_size=7, routes=True)
    engine.load_weights(tiny_models.weights(folder).items(), 0)
    model = tiny_models.reference(folder)
    shape = RouterShape(num_layers=num_layers, topk=2, num_experts=4)
    for group in engine.generate(PROMPTS, Sampling(max_tokens=20, stop=("a", "7")), group_size=6, seed=5):
        for rollout in group.rollouts:
            found = np.sort(unpack_routes(rollout.routes, shape))
            assert found.tolist() == plain_routes(model, group, rollout).sort().values.tolist()
    with pytest.raises(UserError, match="finds no routers in LlamaForCausalLM"):
        embedded.engine(folders["llama_tied"], routes=True)


@pytest.mark.filterwarnings("error::FutureWarning")  # of arguments that Transformers drops
def test_a_response_depends_only_on_weights_prompt_sampling_and_seed(folders, loaded, shape):
    sampling = Sampling(max_tokens=16, top_p=0.95)
    whole = responses(loaded[shape].generate(PROMPTS, sampling, group_size=4, seed=1))
    assert len({tokens for group in whole for tokens, *_ in group}) == 20

    for prompt_, seed in ((PROMPTS[0], 2), (replace(PROMPTS[0], id="other"), 1)):
        assert responses(loaded[shape].generate([prompt_], sampling, group_size=4, seed=seed))[0] != whole[0]
    reverse = responses(loaded[shape].generate(PROMPTS[::-1], sampling, group_size=4, seed=1))
    assert reverse[::-1] == whole
    alone = [responses(loaded[shape].generate([p], sampling, group_size=4, seed=1))[0] for p in PROMPTS]
    assert alone == whole
    smaller = responses(loaded[shape].generate(PROMPTS, sampling, group_size=2, seed=1))
    assert smaller == [group[:2] for group in whole]
    shorter = responses(loaded[shape].generate(PROMPTS, replace(sampling, max_tokens=5), group_size=4, seed=1))
    assert [[r[0] for r in g] for g in shorter] == [[r[0][:5] for r in g] for g in whole]

    three_rows = embedded.engine(folders[shape], max_batch_size=3)  # batches split groups
    three_rows.load_weights(tiny_models.weights(folders[shape]).items(), 0)
    assert responses(three_rows.generate(PROMPTS, sampling, group_size=4, seed=1)) == whole


def test_a_prompt_that_comes_twice_in_a_cycle_has_other_responses(loaded):
    engine, sampling = loaded["qwen3_moe"], Sampling(max_tokens=8)
    pending = start_generation(engine, [PROMPTS[0], PROMPTS[1], PROMPTS[0]], sampling, group_size=2, seed=0)
    groups = dict(pending.generation.wait())
    found = responses([groups[place] for place in range(3)])
    assert len({tokens for group in found for tokens, *_ in group}) == 6
    assert found[:2] == responses(engine.generate(PROMPTS[:2], sampling, group_size=2, seed=0))
    assert found[0] + found[2] == responses(engine.generate(PROMPTS[:1], sampling, group_size=4, seed=0))[0]


def test_greedy_decoding_equals_transformers(loaded, folders, shape):
    groups = loaded[shape].generate(PROMPTS, Sampling(max_tokens=12, temperature=0.0), group_size=1, seed=0)
    model = tiny_models.reference(folders[shape])
    for group in groups:
        tokens = torch.tensor([group.prompt.tokens])
        expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=12)
        assert group.rollouts[0].tokens.tolist() == expected[0, tokens.shape[1] :].tolist()


def test_first_tokens_have_the_frequencies_of_the_softmax(loaded, folders, shape):
    num_samples = 4000
    group = loaded[shape].generate(PROMPTS[:1], Sampling(max_tokens=1), group_size=num_samples, seed=0)[0]
    counts = torch.bincount(torch.tensor([r.tokens[0] for r in group.rollouts]), minlength=tiny_models.VOCAB_SIZE)
    logits = tiny_models.reference(folders[shape])(torch.tensor([PROMPTS[0].tokens])).logits[0, -1]
    expected = logits.double().softmax(-1) * num_samples
    common = expected >= 5  # the chi-square approximation holds for these tokens; the rest is one class
    counts = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([expected[common], expected[~common].sum()[None]])
    degrees = len(expected) - 1
    assert ((counts - expected) ** 2 / expected)[expected > 0].sum() < degrees + 5 * (2 * degrees) ** 0.5


def test_a_response_ends_at_the_end_of_sequence_token_or_at_max_tokens(loaded, shape):
    sampling = Sampling(max_tokens=30, temperature=2.0)
    rollouts = [r for g in loaded[shape].generate(PROMPTS, sampling, group_size=24, seed=0) for r in g.rollouts]
    assert {r.finish_reason for r in rollouts} == {"stop", "length"}
    for rollout in rollouts:
        assert (rollout.tokens[-1] == EOS) == (rollout.finish_reason == "stop")
        assert EOS not in rollout.tokens[:-1]
        assert len(rollout.rollout_log_probs) == len(rollout.tokens) <= 30
        assert len(rollout.tokens) == 30 or rollout.finish_reason == "stop"
        assert "<eos>" not in rollout.text
        assert rollout.policy_version == 3


def test_only_end_and_padding_tokens_are_left_out_of_the_text(folders, tmp_path):
    """A tag may be a special token, as `<think>` of some models; then `a` is one here, and `b` ends a response."""
    folder = tmp_path / "model"
    shutil.copytree(folders["qwen3_moe"], folder)
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["a", "c"]})
    tokenizer.save_pretrained(folder)
    a, b, c = tokenizer.convert_tokens_to_ids(["a", "b", "c"])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, b]}))
    engine = embedded.engine(folder)
    engine.load_weights(tiny_models.weights(folder).items(), 3)
    found = engine.generate(PROMPTS, Sampling(max_tokens=30, temperature=2.0), group_size=24, seed=0)
    model = RequestFormat(folder, run="run", routes=False).model
    rollouts = [rollout for group in found for rollout in group.rollouts]
    assert {a, c, tiny_models.PAD, b, EOS} < {int(token) for rollout in rollouts for token in rollout.tokens}
    for rollout in rollouts:
        served = text_of(rollout.tokens.tolist(), model.tokenizer, model.end_tokens)
        kept = [token for token in rollout.tokens.tolist() if token not in (tiny_models.PAD, b, EOS)]
        assert rollout.text == served == tokenizer.decode(kept)


def test_a_stop_string_ends_the_response_and_stays_in_it(loaded):
    free = Sampling(max_tokens=30)
    group = loaded["qwen3_moe"].generate(PROMPTS[1:2], free, group_size=8, seed=2)[0]
    long = next(r for r in group.rollouts if r.finish_reason == "length")
    stop = long.text[7:10]
    stopped = loaded["qwen3_moe"].generate(
        PROMPTS[1:2], replace(free, stop=("never seen", stop)), group_size=8, seed=2
    )[0]
    for before, after in zip(group.rollouts, stopped.rollouts, strict=True):
        end = before.text.find(stop)
        expected = before.text if end < 0 else before.text[: end + len(stop)]
        assert after.text == expected
        assert after.tokens.tolist() == before.tokens[: len(after.tokens)].tolist()
        assert after.finish_reason == ("stop" if end >= 0 else before.finish_reason)
    assert any(r.finish_reason == "stop" and r.text.endswith(stop) for r in stopped.rollouts)


def test_a_response_ends_at_the_models_last_position(loaded):
    long = prompt("a" * 60)
    group = loaded["qwen3_moe"].generate([PROMPTS[0], long], Sampling(max_tokens=50, top_p=0.5), group_size=6, seed=0)[
        1
    ]
    assert max(len(r.tokens) for r in group.rollouts) == 4
    assert all(len(r.tokens) == 4 or r.finish_reason == "stop" for r in group.rollouts)


def test_generation_that_is_not_possible_is_an_error(folders):
    engine = embedded.engine(folders["qwen3_moe"])
    with pytest.raises(UserError, match="call load_weights before generate"):
        engine.generate(PROMPTS, Sampling(), group_size=1, seed=0)
    with pytest.raises(UserError, match="Transformers cannot use"):
        embedded.engine(folders["qwen3_moe"].parent)
    weights = tiny_models.weights(folders["qwen3_moe"])
    engine.load_weights(weights.items(), 0)
    with pytest.raises(UserError, match="64 tokens and the model 64 positions"):
        engine.generate([PROMPTS[1], prompt("a" * 64)], Sampling(), group_size=1, seed=0)
    engine.close()
    with pytest.raises(UserError, match="has no weights"):
        engine.generate(PROMPTS, Sampling(), group_size=1, seed=0)
    with pytest.raises(UserError, match="unknown"):
        engine.load_weights(weights.items(), 0)


def test_the_engine_neither_reads_weights_nor_moves_the_random_state(tmp_path, folders):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folders["qwen3_moe"].iterdir():
        if file.suffix == ".json":
            (bare / file.name).write_bytes(file.read_bytes())
    before = torch.get_rng_state()
    engine = resolve("rollout/engines", "embedded", "engine")(bare)
    engine.load_weights(tiny_models.weights(folders["qwen3_moe"]).items(), 0)
    engine.generate(PROMPTS, Sampling(max_tokens=2), group_size=1, seed=0)
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in engine._decoder.model.parameters())


@pytest.mark.parametrize(("value", "temperature", "top_p"), [(float("inf"), 1.0, 0.5), (float("nan"), 0.0, 1.0)])
def test_weights_that_are_not_finite(folders, value, temperature, top_p):
    engine = embedded.engine(folders["llama_tied"], device="cpu")
    weights = tiny_models.weights(folders["llama_tied"])
    weights["model.norm.weight"][0] = value
    engine.load_weights(weights.items(), 3)
    with pytest.raises(
        UserError, match=r"the weights of .* at update 3 give logits that are not finite: .*; check the"
    ):
        engine.generate(PROMPTS, Sampling(max_tokens=4, temperature=temperature, top_p=top_p), group_size=2, seed=0)


def test_linear_layers_in_fp8(folders, loaded, shape):
    linear = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    weights = tiny_models.weights(folders[shape])
    rounded = {
        name: fp8.dequantize(*fp8.quantize(tensor), tensor.dtype) if name.split(".")[-2] in linear else tensor
        for name, tensor in weights.items()
    }
    sampling = Sampling(max_tokens=8)
    in_fp8, by_hand = embedded.engine(folders[shape], quantize="fp8"), embedded.engine(folders[shape])
    in_fp8.load_weights(weights.items(), 1)
    by_hand.load_weights(rounded.items(), 1)
    found, expected, exact = (
        [
            r.rollout_log_probs.tolist()
            for g in engine.generate(PROMPTS, sampling, group_size=2, seed=0)
            for r in g.rollouts
        ]
        for engine in (in_fp8, by_hand, loaded[shape])
    )
    assert found == expected != exact
