"""Converts prompts to SGLang's requests, and SGLang's answers to rollouts, without sending anything."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megatron_sspo.arrays.convert import freeze, log_prob_array, token_array
from megatron_sspo.arrays.equality import EqualByArrays
from megatron_sspo.batching.routes import pack_routes
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.engine import ModelText
from megatron_sspo.rollout.servers.weight_versions import version_number
from megatron_sspo.rollout.stopping import end_tokens
from megatron_sspo.types import FinishReason, Prompt, Sampling, join_spans
from megatron_sspo.weights.transformers_config import read_config, read_tokenizer

_ROUNDING = 1e-3  # of a log-prob near 0 that a server computed in half precision


@dataclass(frozen=True, slots=True, eq=False)
class PartialResponse(EqualByArrays):
    """A turn so far: complete, or incomplete because its request was aborted.

    Requests are aborted when weights are replaced or a request takes too long.
    """

    tokens: np.ndarray = field(default_factory=lambda: token_array([]))  # [n] int32, as in `Rollout`
    log_probs: np.ndarray = field(default_factory=lambda: log_prob_array([]))  # [n] float32
    spans: tuple[tuple[int, int], ...] = ()  # (policy version, number of consecutive tokens that it sampled)
    finish_reason: FinishReason | None = None  # None: incomplete
    routes: np.ndarray | None = None  # as in `Rollout`

    def __add__(self, more: "PartialResponse") -> "PartialResponse":
        """Appends the continuation `more`. Its routes cover both parts, because the server prefilled these tokens."""
        return PartialResponse(
            _joined(self.tokens, more.tokens),
            _joined(self.log_probs, more.log_probs),
            tuple(join_spans((*self.spans, *more.spans))),
            more.finish_reason,
            more.routes,
        )


class RequestFormat:
    """The conversion between prompts, requests, answers and rollouts of one model.

    Args:
        model_path: folder with config.json and tokenizer.
        run: the identifier in the names of this run's weight versions: see `version_name`.
        routes: whether servers report the experts of each token.

    Attributes:
        model: the text side of the model.
    """

    def __init__(self, model_path: Path, *, run: str, routes: bool) -> None:
        config = read_config(model_path)
        tokenizer = read_tokenizer(model_path)
        self._end_tokens = sorted(end_tokens(model_path, config, tokenizer))
        self._num_experts: int = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", 0)
        self._experts_per_token: int = getattr(config, "num_experts_per_tok", 0)
        self._max_positions: int = config.get_text_config().max_position_embeddings
        self._vocab_size: int = config.get_text_config().vocab_size
        self._run, self._routes = run, routes
        self.model = ModelText(tokenizer, self._end_tokens, self._max_positions, self._vocab_size)

    def check(self, prompt: Prompt) -> None:
        """Raises UserError if the prompt is empty or leaves no room for a response."""
        if not 0 < len(prompt.tokens) < self._max_positions:
            raise UserError(
                f"prompt {prompt.id} has {len(prompt.tokens)} tokens and the model {self._max_positions} "
                "positions: drop or shorten it"
            )

    def max_new_tokens(self, prompt: Prompt, sampling: Sampling) -> int:
        """Returns the largest number of tokens that may follow a prompt."""
        return min(sampling.max_tokens, self._max_positions - len(prompt.tokens))

    def to_request(
        self, prompt: Prompt, sampling: Sampling, part: PartialResponse, *, id: str, schema: str = ""
    ) -> dict[str, Any]:
        """Returns the request for the rest of a response; with a JSON schema, for JSON that follows it."""
        return {
            "rid": id,
            "input_ids": [*prompt.tokens, *part.tokens.tolist()],
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": self.max_new_tokens(prompt, sampling) - len(part.tokens),
                "stop": list(sampling.stop) or None,
                "stop_token_ids": self._end_tokens,
                "no_stop_trim": True,
                "skip_special_tokens": True,
                **({"json_schema": schema} if schema else {}),
            },
            "return_logprob": True,
            "return_routed_experts": self._routes,
        }

    def parse(self, answer: Mapping[str, Any], num_inputs: int) -> PartialResponse:
        """Converts the answer to a request of `num_inputs` tokens. The last token of an aborted response is dropped.

        SGLang has not checked yet whether the response ends with that token: as an end token, at the end of a stop
        string, or by its length. The token is always sampled again: keeping it in some cases only would bias the
        distribution.

        Raises:
            ValueError: the answer is malformed, or its weights come from no sync of this run.
            UserError: the server has not recorded the experts that it reports.
        """
        try:
            meta = answer["meta_info"]
            kind = meta["finish_reason"]["type"]
            output_ids, rows = answer["output_ids"], meta["output_token_logprobs"]
            if kind == "abort" and len(output_ids) <= 1:
                return PartialResponse()
            if [row[1] for row in rows] != output_ids:
                raise ValueError("output_ids and output_token_logprobs differ")
            tokens, log_probs = token_array(output_ids), log_prob_array([row[0] for row in rows])
            self._check(tokens, log_probs)
            if kind == "abort":
                tokens, log_probs = tokens[:-1], log_probs[:-1]
            named = _spans(meta, len(tokens))
            # An aborted response needs no routes: the last part has the routes of the whole response.
            needs_routes = self._routes and kind != "abort"
            routes = self._pack_routes(meta, num_inputs + len(tokens) - 1) if needs_routes else None
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise ValueError(f"the answer is malformed ({error!r}): {str(answer)[:300]}") from error
        if kind not in ("stop", "length", "abort"):
            raise ValueError(f"the response ended with the unknown finish_reason {meta['finish_reason']}")
        spans = tuple((version_number(self._run, version), count) for version, count in named)
        return PartialResponse(tokens, log_probs, spans, None if kind == "abort" else kind, routes)

    def _check(self, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Raises ValueError if a response has no token, or one that no model of this vocabulary can have sampled."""
        if not len(tokens):
            raise ValueError("there is no token")
        if tokens.min() < 0 or tokens.max() >= self._vocab_size:
            raise ValueError(f"a token is not one of the {self._vocab_size} of the vocabulary")
        if not (log_probs.min() > -np.inf and log_probs.max() <= _ROUNDING):  # NaN fails both
            raise ValueError("a log-prob is not a finite number of at most 0")

    def _pack_routes(self, meta: Mapping[str, Any], num_tokens: int) -> np.ndarray:
        """Packs the experts of every token except the last one, which the model has not processed.

        Raises:
            UserError: the server has recorded none.
            ValueError: there is no such expert, or the experts are not those of `num_tokens` tokens.
        """
        chosen = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=np.int32)
        # SGLang's buffer of zeros is untouched where a kernel chooses the experts itself, as its default on Blackwell
        # does, without an error (0.5.23). The experts of a token differ, so several are not all expert 0.
        if self._experts_per_token > 1 and len(chosen) and not chosen.any():
            raise UserError(
                'a rollout server reports expert 0 alone as the experts of a response, so routing_replay="R3" would '
                'replay wrong ones: set rollouts.options.server={"moe_runner_backend": "triton"}, or choose "R2"'
            )
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < self._num_experts):
            raise ValueError(f"experts {chosen.min()} to {chosen.max()} were chosen of {self._num_experts}")
        if num_tokens and (not len(chosen) or len(chosen) % (num_tokens * self._experts_per_token)):
            raise ValueError(
                f"{len(chosen)} experts are not those of {num_tokens} tokens with {self._experts_per_token} each"
            )
        return pack_routes(chosen, self._num_experts)


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return freeze(np.concatenate([first, second])) if len(first) else second


def _spans(meta: Mapping[str, Any], num_tokens: int) -> tuple[tuple[str, int], ...]:
    """Returns (name of the weights' version, number of tokens) for each span of tokens.

    Raises:
        ValueError: a version has no name, or the spans do not follow one another through all tokens.
    """
    found = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": num_tokens}]
    spans, end = [], 0
    for span in found:
        if span["start"] != end or not isinstance(span["version"], str):
            raise ValueError(f"weight versions {found}")
        end = span["end"]
        if count := min(end, num_tokens) - span["start"]:
            spans.append((span["version"], count))
    if end < num_tokens:
        raise ValueError(f"weight versions {found}, and there are {num_tokens} tokens")
    return tuple(spans)
