"""The end of a response: end-of-sequence tokens and stop strings; and the text that is left without its end."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from megatron_sspo.data.template import end_of_turn
from megatron_sspo.rollout.engine import ModelText
from megatron_sspo.weights.transformers_config import (
    read_config,
    read_tokenizer,
    transformers_errors_as_user_errors,
)

TEMPLATE = "the chat template"


def end_tokens(model_path: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the union of the end tokens in `config.json`, `generation_config.json`, the tokenizer and its template.

    SGLang uses the union of the first three too; the files of a chat model often name different tokens. The files of
    others name none of those with which the chat template ends a turn, and responses would go on after their end.

    Raises:
        UserError: Transformers cannot read a file.
    """
    return frozenset().union(*_named_end_tokens(model_path, config, tokenizer).values())


def _named_end_tokens(model_path: Path, config: PretrainedConfig, tokenizer: Any) -> dict[str, list[int]]:
    """Returns place -> the end tokens that it names."""
    named = {"config.json": getattr(config, "eos_token_id", None), "the tokenizer": tokenizer.eos_token_id}
    name = "generation_config.json"
    if (model_path / name).exists():
        with transformers_errors_as_user_errors(model_path / name):
            named[name] = GenerationConfig.from_pretrained(model_path, local_files_only=True).eos_token_id
    tokens = {
        place: found if isinstance(found, list) else [] if found is None else [found] for place, found in named.items()
    }
    if (end := end_of_turn(tokenizer)) is not None:
        tokens[TEMPLATE] = [end]
    return tokens


def read_model_text(model_path: Path, config: PretrainedConfig) -> ModelText:
    """Returns the text side of the model in a Hugging Face folder."""
    tokenizer, sizes = read_tokenizer(model_path), config.get_text_config()
    found = end_tokens(model_path, config, tokenizer)
    return ModelText(tokenizer, found, sizes.max_position_embeddings, sizes.vocab_size)


def text_of(tokens: Sequence[int], tokenizer: Any, end_tokens: Collection[int]) -> str:
    """Returns the text of tokens without end and padding tokens; other special tokens, as some tags are, stay."""
    left_out = {*end_tokens, tokenizer.pad_token_id}
    return str(tokenizer.decode([token for token in tokens if token not in left_out], skip_special_tokens=False))


def describe_end_of_turn(model_path: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a sentence about an end token that the chat template alone names; "" if there is none."""
    named = _named_end_tokens(model_path, read_config(model_path), tokenizer)
    added = set(named.pop(TEMPLATE, ())) - {token for tokens in named.values() for token in tokens}
    return "".join(
        f"the chat template ends an answer with {tokenizer.convert_ids_to_tokens(token)!r}, which no file names as "
        "eos_token_id: it ends responses, too"
        for token in added
    )


class StopStrings:
    """A detector of stop strings that the newest token of a response completes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # A token adds at least one byte, so this many tokens hold any stop string. One more is needed because some
        # decoders strip the space before the first token.
        self._tail = 1 + max((len(string.encode()) for string in stop), default=0)
        self._can_end: dict[int, bool] = {}

    def is_stopped(self, tokens: Sequence[int], turn_start: int = 0) -> bool:
        """Returns whether a stop string ends in the last token, given that none ended earlier in the turn.

        Args:
            tokens: the tokens of the response.
            turn_start: position at which the turn begins.
        """
        if not self._stop or not self._can_end_stop_string(tokens[-1]):
            return False
        tail = self._decode(tokens[max(turn_start, len(tokens) - self._tail) :])
        return any(string in tail for string in self._stop)

    def _can_end_stop_string(self, token: int) -> bool:
        """Returns False if the text of the token alone shows that it ends no stop string, so no tail is decoded."""
        if token not in self._can_end:
            text = self._decode([token])
            self._can_end[token] = "\ufffd" in text or any(  # a character's last byte does not decode alone
                string[-1] in text or string[-1].isspace()  # some decoders strip a lone space
                for string in self._stop
            )
        return self._can_end[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        # with special tokens, which a stop string may name, as SGLang looks for them
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
