"""Converts prompts to SGLang's requests, and SGLang's answers to rollouts, without sending anything."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megatron_sspo.arrays.convert import freeze, log_prob_array, token_array
from megatron_sspo.arrays.equality import EqualByArrays
from megatron_sspo.batching.routes import pack_routes
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.stopping import read_model_text
from megatron_sspo.types import FinishReason, Prompt, Sampling, join_spans
from megatron_sspo.weights.transformers_config import read_config


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
        run: the identifier in the names of weight versions, different in every process that sends weights.
        routes: whether servers report the experts of each token.
    """

    adapter = ""  # the name of the adapter that responses are sampled with; "": none

    def __init__(self, model_path: Path, *, run: str, routes: bool) -> None:
        config = read_config(model_path)
        self._num_experts: int = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", 0)
        self._experts_per_token: int = getattr(config, "num_experts_per_tok", 0)
        self._num_dense: int = getattr(config, "first_k_dense_replace", 0)
        self._run, self._routes = run, routes
        self.model = read_model_text(model_path, config)

    def to_request(
        self, prompt: Prompt, sampling: Sampling, part: PartialResponse, *, id: str, schema: str = ""
    ) -> dict[str, Any]:
        """Returns the request for the rest of a turn, of `sampling.max_tokens` in all; a schema makes it JSON."""
        return {
            "rid": id,
            "input_ids": [*prompt.tokens, *part.tokens.tolist()],
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": sampling.min_p,
                "max_new_tokens": sampling.max_tokens - len(part.tokens),
                "stop": list(sampling.stop) or None,
                "stop_token_ids": sorted(self.model.end_tokens),
                "no_stop_trim": True,
                "skip_special_tokens": True,
                **({"json_schema": schema} if schema else {}),
            },
            "return_logprob": True,
            "return_routed_experts": self._routes,
            **({"lora_path": self.adapter} if self.adapter else {}),
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
            tokens, log_probs = token_array(output_ids), log_prob_array([row[0] for row in rows])
            if not (len(tokens) == len(log_probs) > 0 and np.isfinite(log_probs).all()):
                raise ValueError("there is not one finite log-prob for each token")
            if kind == "abort":
                tokens, log_probs = tokens[:-1], log_probs[:-1]
            spans = tuple(self._spans(meta, len(tokens)))
            # An aborted response needs no routes: the last part has the routes of the whole response.
            needs_routes = self._routes and kind != "abort"
            routes = self._pack_routes(meta, num_inputs + len(tokens) - 1) if needs_routes else None
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise ValueError(f"the answer is malformed ({error!r}): {str(answer)[:300]}") from error
        if kind not in ("stop", "length", "abort"):
            raise ValueError(f"the response ended with the unknown finish_reason {meta['finish_reason']}")
        return PartialResponse(tokens, log_probs, spans, None if kind == "abort" else kind, routes)

    def _spans(self, meta: Mapping[str, Any], num_tokens: int) -> Iterator[tuple[int, int]]:
        """Yields (policy version, number of tokens) for each span of tokens."""
        for span in meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": num_tokens}]:
            if (count := min(span["end"], num_tokens) - span["start"]) > 0:
                yield self._version_number(span["version"]), count

    def version_name(self, version: int) -> str:
        """Returns the name of a policy version's weights on the servers."""
        return f"{self._run}-{version}"

    def _version_number(self, name: str) -> int:
        sender, _, number = name.rpartition("-")
        if sender != self._run or not number.isdecimal():
            raise ValueError(
                f"these are weights of the version {name!r}, which this run has not sent: the server was restarted, or "
                "another trainer uses it, too"
            )
        return int(number)

    def _pack_routes(self, meta: Mapping[str, Any], num_tokens: int) -> np.ndarray:
        """Packs the experts of every token except the last one, which the model has not processed."""
        chosen = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=np.int32)
        # SGLang's buffer of zeros is untouched where a kernel chooses the experts itself, as its default on Blackwell
        # does, without an error (0.5.23). The experts of a token differ, so several are not all expert 0.
        if self._experts_per_token > 1 and len(chosen) and not chosen.any():
            raise UserError(
                'a rollout server reports expert 0 alone as the experts of a response, so routing_replay="R3" would '
                'replay wrong ones: set rollouts.options.server={"moe_runner_backend": "triton"}, or choose "R2"'
            )
        if num_tokens and (not len(chosen) or len(chosen) % (num_tokens * self._experts_per_token)):
            raise ValueError(
                f"{len(chosen)} experts are not those of {num_tokens} tokens with {self._experts_per_token} each"
            )
        if self._num_dense and num_tokens:  # SGLang reports zeros for the first layers, which have no experts
            chosen = chosen.reshape(num_tokens, -1, self._experts_per_token)[:, self._num_dense :]
        return pack_routes(chosen, self._num_experts)


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return freeze(np.concatenate([first, second])) if len(first) else second
