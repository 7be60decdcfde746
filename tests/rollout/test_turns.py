"""Rollouts of several turns: the tokens between two turns, and the embedded engine in an environment."""

from itertools import pairwise

import pytest
import torch

from megatron_sspo.batching.routes import RouterShape, unpack_routes
from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.environment.codeact import CodeAct
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.collect import collect, start_generation
from megatron_sspo.rollout.engines import embedded
from megatron_sspo.rollout.environments import EnvironmentEpisodes
from megatron_sspo.types import Sampling
from packages.sandbox.tests.conftest import LIMITS, assert_nothing_runs, processes_of
from sspo_sandbox.sandbox import Sandbox
from tests.rollout import acting_models, tiny_models
from tests.rollout.test_embedded import plain_routes, teacher_forced

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MAX_TOKENS = 40


def characters(template):
    """Builds a tokenizer with one token per character, and one each for <|im_start|> and <|im_end|>."""
    made = tiny_models.tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    return made


def test_tokens_between_turns_are_those_of_the_chat_template():
    tokenizer = characters(CHATML)
    turns = TurnTemplate(tokenizer)
    messages = [
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "no"},
    ]
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for response in (tokenizer("2")["input_ids"], [*tokenizer("2")["input_ids"], end]):  # by stop string, by end token
        assert [*prompt, *response, *turns.observation_tokens(response, "no")] == whole


@pytest.mark.parametrize("observation", [False, 4, ["4", "5"]])
def test_an_observation_is_text(observation):
    with pytest.raises(UserError, match=r"the environment's observe returned .*: it must return text"):
        TurnTemplate(characters(CHATML)).observation_tokens((5,), observation)


def test_special_tokens_in_an_observation_are_encoded_as_text():
    tokenizer = characters(CHATML)
    found = TurnTemplate(tokenizer).observation_tokens((5,), "<eos>")
    assert tiny_models.EOS in tokenizer("<eos>")["input_ids"] and tiny_models.EOS not in found
    assert "<eos>" in tokenizer.decode(found)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "is missing: choose a model with a chat template"),
        ("{{ raise_exception('one at a time') }}", r"rejects a conversation of several turns \(one at a time\)"),
        ("{{ messages[-1].content }}", "does not show a response and the message after it"),
        ("{{ messages[-1].content }}{{ messages[1].content }}", "does not show a response and the message after it"),
    ],
)
def test_a_template_without_a_second_turn(template, message):
    with pytest.raises(UserError, match=message):
        TurnTemplate(characters(template))


# ---------------------------------------------------------------------- the embedded engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return acting_models.build(tmp_path_factory.mktemp("acting"))


@pytest.fixture(scope="module")
def engine(folder):
    made = embedded.engine(folder, routes=True)
    made.load_weights(tiny_models.weights(folder).items(), 3)
    return made


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox(LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def acting(sandbox):
    return CodeAct(sandbox, concurrency=2, max_turns=4, max_characters=60, max_episodes=10)


class NoReward:
    def score(self, prompts, responses):
        return [{"answer": 0.0} for _ in responses]

    def close(self):
        pass


PROMPTS = [acting_models.prompt(id) for id in ("w30 w31", "w32", "w33 w34 w35 w36")]


def collected(engine, environment, seed=0, **sampling):
    options = {"max_tokens": MAX_TOKENS, **sampling}
    sampling = Sampling(**options)
    pending = start_generation(
        engine, PROMPTS, sampling, group_size=6, seed=seed, environment=EnvironmentEpisodes(environment)
    )
    return collect(pending, NoReward(), sync=lambda: None)


@pytest.fixture(scope="module")
def groups(engine, acting):
    return collected(engine, acting)


def turns_of(rollout):
    """Returns (tokens of the turn, tokens between it and the next turn) for each turn."""
    borders = [0, *(place for span in rollout.observed for place in span), len(rollout.tokens)]
    parts = [tuple(rollout.tokens[a:b].tolist()) for a, b in pairwise(borders)]
    return list(zip(parts[::2], [*parts[1::2], ()], strict=True))


def without_ends(tokens):
    return [token for token in tokens if token not in (tiny_models.PAD, tiny_models.EOS)]


def test_observations_are_those_of_the_environment(groups, acting, sandbox):
    """Replays the turns of each rollout."""
    tokenizer = acting_models.tokenizer()
    template = TurnTemplate(tokenizer)
    ends = {"no observation": 0, "no room": 0, "no tokens": 0}
    for group in groups:
        for rollout in group.rollouts:
            episode = acting.open(group.prompt)
            *before, last = turns_of(rollout)
            for turn, between in before:
                text = tokenizer.decode(turn).rstrip()
                assert text.endswith("</execute>") or turn[-1] == tiny_models.EOS
                assert text.count("</execute>") == text.endswith("</execute>"), "a turn went on behind its end"
                observation = episode.observe(tokenizer.decode(without_ends(turn)))
                assert observation is not None and between == template.observation_tokens(turn, observation)
            assert rollout.text == tokenizer.decode(without_ends(last[0]))
            if len(rollout.tokens) == MAX_TOKENS:
                ends["no tokens"] += 1
                assert rollout.finish_reason == "length"
            else:
                observation = episode.observe(rollout.text)
                ends["no observation" if observation is None else "no room"] += 1
                room = MAX_TOKENS - len(rollout.tokens)
                assert observation is None or len(template.observation_tokens(last[0], observation)) >= room
                assert rollout.finish_reason == ("stop" if observation is None else "length")
            episode.close()
    assert all(ends.values()), ends
    assert_nothing_runs(sandbox)


def test_a_rollout_counts_sampled_tokens_only(groups, tmp_path):
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert {rollout.num_turns for rollout in rollouts} >= {1, 2, 3}
    for rollout in rollouts:
        mask = rollout.response_mask()
        assert rollout.num_response_tokens == sum(mask) == sum(len(turn) for turn, _ in turns_of(rollout))
        assert len(mask) == len(rollout.tokens) == len(rollout.rollout_log_probs) <= MAX_TOKENS
        assert bool(rollout.transcript) == (rollout.num_turns > 1)
        assert rollout.transcript.count("[user]") >= rollout.num_turns - 1
    write_batches(tmp_path / "batches.npz", [groups])
    assert read_batches(tmp_path / "batches.npz") == [groups]


def test_log_probs_of_every_turn_are_those_of_a_plain_forward_pass(groups, folder):
    model = tiny_models.reference(folder)
    for group in groups:
        for rollout in group.rollouts:
            mask = torch.tensor(rollout.response_mask())
            found, expected = torch.tensor(rollout.rollout_log_probs), teacher_forced(model, group, rollout, 1.0, 1.0)
            torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-5)
            assert (found[~mask] == 0).all()
            routes = unpack_routes(rollout.routes, RouterShape(num_layers=2, topk=2, num_experts=4))
            assert routes.tolist() == plain_routes(model, group, rollout).tolist()


class Broken(CodeAct):
    def execute(self, session, code, is_needed):
        raise UserError("the interpreter of a rollout failed")


def test_no_interpreter_is_left_when_the_environment_breaks(engine, sandbox):
    broken = Broken(sandbox, concurrency=2, max_turns=4, max_characters=60, max_episodes=10)
    with pytest.raises(UserError, match="interpreter of a rollout failed"):
        collected(engine, broken)
    assert broken.metrics()["cells_per_episode"] == 0
    assert processes_of(sandbox) == []


def test_a_stop_string_in_an_observation_does_not_end_a_turn(engine):
    """Checks that only the current turn is searched for stop strings."""

    class Echo:
        stop = ()
        max_episodes = 100

        def open(self, prompt):
            return self

        def observe(self, response):
            return "6"

        def close(self):
            pass

    groups = collected(engine, Echo(), stop=("[bot] w",))
    assert any(rollout.num_turns > 1 for group in groups for rollout in group.rollouts)
    for group in groups:
        for rollout in group.rollouts:
            for turn, between in turns_of(rollout):
                assert not between or turn[-1] == tiny_models.EOS or 4 in turn[:-1]
