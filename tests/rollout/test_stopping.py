"""Detection of stop strings, independently of token boundaries, and of end-of-sequence tokens in all files."""

import json
import shutil

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from megatron_sspo.errors import UserError
from megatron_sspo.rollout.stopping import StopStrings, describe_end_of_turn, end_tokens
from megatron_sspo.weights.transformers_config import read_config
from tests.rollout import tiny_models


def first_stop(tokenizer, text, stop):
    """Returns the decoded text up to the first token that completes a stop string, or None."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    strings = StopStrings(tokenizer, stop)
    for end in range(1, len(tokens) + 1):
        if strings.is_stopped(tokens[:end]):
            return tokenizer.decode(tokens[:end])
    return None


def test_text_before_the_turn_does_not_stop_it():
    strings, tokens = StopStrings(tiny_models.tokenizer(), ("ab",)), tiny_models.tokenizer().encode("xab")
    assert strings.is_stopped(tokens, 1) and not strings.is_stopped(tokens, 2)


def of_characters():
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    return tokenizer


def of_bytes():
    """Builds a tokenizer of bytes and two merges: stop strings end inside tokens, and characters span tokens."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("r", ">"), ("r>", "x")]
    vocabulary |= {"r>": len(vocabulary), "r>x": len(vocabulary) + 1}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize(
    ("tokenizer", "text", "stop", "expected"),
    [
        (of_characters, "one</answer>two</answer>", ("</answer>",), "one</answer>"),
        (of_characters, "a.b\n\nc", ("\n\n", "never"), "a.b\n\n"),
        (of_characters, "ab<|im_end|>c", ("<|im_end|>",), "ab<|im_end|>"),
        (of_characters, "abc", ("z",), None),
        (of_characters, "abc", (), None),
        (
            of_bytes,
            "go</answer>xyz",
            ("</answer>",),
            "go</answer>x",
        ),  # ends inside the token "r>x", which is kept whole
        (of_bytes, "so é! 終わり。more", ("終わり。",), "so é! 終わり。"),
    ],
)
def test_the_first_token_that_completes_a_stop_string(tokenizer, text, stop, expected):
    assert first_stop(tokenizer(), text, stop) == expected


@pytest.mark.parametrize(
    ("in_config", "in_generation_config", "expected"),
    [(5, None, {1, 5}), ([5, 6], [7, 5], {1, 5, 6, 7}), (None, 8, {1, 8}), (None, None, {1})],
)
def test_end_tokens_are_the_union_of_all_files(tmp_path, folders, in_config, in_generation_config, expected):
    config = AutoConfig.from_pretrained(folders["qwen3_moe"])
    config.eos_token_id = in_config
    if in_generation_config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation_config}))
    assert end_tokens(tmp_path, config, tiny_models.tokenizer()) == expected


@pytest.mark.parametrize(
    ("template", "names_it"),
    [
        ("{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}", True),
        (
            "{% for m in messages %}{{ m.content }}{{ ' <|im_end|>' if loop.last else '<|end|>' }}{% endfor %}",
            True,
        ),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", False),
        ("{% for m in messages %}<|im_end|>{{ m.content }}{% endfor %}", False),
        ("{{ raise_exception('no') }}", False),
        (None, False),
    ],
)
def test_the_token_with_which_the_template_ends_an_answer_ends_responses(tmp_path, folders, template, names_it):
    """Files of a base model, for example, name `<|endoftext|>` alone, and no response would end in time."""
    shutil.copy(folders["qwen3_moe"] / "config.json", tmp_path)
    config, tokenizer = AutoConfig.from_pretrained(tmp_path), tiny_models.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|end|>"]})
    tokenizer.chat_template = template
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end_tokens(tmp_path, config, tokenizer) == ({tiny_models.EOS, end} if names_it else {tiny_models.EOS})
    said = "the chat template ends an answer with '<|im_end|>', which no file names as eos_token_id: it ends responses"
    assert describe_end_of_turn(tmp_path, tokenizer).startswith(said) == names_it
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    assert describe_end_of_turn(tmp_path, tokenizer) == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("generation_config.json", "{", "Transformers cannot use .*generation_config.json .*; correct the file"),
        ("config.json", '{"model_type": "llama", "eos_token_id": "</s>"}', "eos_token_id"),
    ],
)
def test_files_that_name_no_end_tokens(tmp_path, name, content, message):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as raised:
        end_tokens(tmp_path, read_config(tmp_path), tiny_models.tokenizer())
    assert "\n" not in str(raised.value)
