"""The scripted engine."""

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engines import scripted
from megatron_sspo.types import Sampling
from tests.rollout import tiny_models

PROMPTS = [tiny_models.prompt("1+1="), tiny_models.prompt("2+2=")]


def generate(engine, group_size=2, **sampling):
    engine.load_weights([("b", torch.ones(1)), ("a", torch.ones(1))], 7)
    return engine.generate(PROMPTS, Sampling(**sampling), group_size=group_size, seed=0)


def test_a_function_as_script_and_the_record_of_loaded_weights():
    engine = scripted.engine(
        lambda prompt, index: f"{prompt.id}{index}",
        tiny_models.tokenizer(),
        log_probs=lambda prompt, index: [-0.1 * n for n in range(6)],
    )
    groups = generate(engine)
    assert [group.prompt for group in groups] == PROMPTS
    assert [[rollout.text for rollout in group.rollouts] for group in groups] == [
        ["1+1=0", "1+1=1"],
        ["2+2=0", "2+2=1"],
    ]
    rollout = groups[0].rollouts[0]
    assert rollout.tokens == (*tiny_models.prompt("1+1=0").tokens, tiny_models.EOS)
    assert rollout.rollout_log_probs == tuple(-0.1 * n for n in range(6))
    assert (rollout.finish_reason, rollout.policy_version) == ("stop", 7)
    assert engine.weight_loads == [scripted.WeightLoad(7, ("b", "a"))]


def test_a_mapping_repeats_its_responses_cut_at_max_tokens():
    engine = scripted.engine({"1+1=": ["2", "333"], "2+2=": ["4"]}, tiny_models.tokenizer())
    groups = generate(engine, group_size=3, max_tokens=2)
    assert [[rollout.text for rollout in group.rollouts] for group in groups] == [["2", "33", "2"], ["4", "4", "4"]]
    assert [rollout.finish_reason for rollout in groups[0].rollouts] == ["stop", "length", "stop"]
    assert groups[0].rollouts[1].rollout_log_probs == (-1.0, -1.0)


def test_an_invalid_script_is_an_error():
    with pytest.raises(UserError, match="no response to prompt 2"):
        generate(scripted.engine({"1+1=": ["2"]}, tiny_models.tokenizer()))
    with pytest.raises(UserError, match="2 log-probs for the 4 tokens"):
        generate(scripted.engine(lambda *_: "abc", tiny_models.tokenizer(), log_probs=lambda *_: [-1.0, -2.0]))
    with pytest.raises(UserError, match="call load_weights"):
        scripted.engine({}, tiny_models.tokenizer()).generate(PROMPTS, Sampling(), group_size=1, seed=0)
