"""The model of the embedded engine, which decodes a batch of rows with a key-value cache."""

import inspect
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from megatron_sspo.errors import UserError
from megatron_sspo.processes.hang import mark_progress
from megatron_sspo.rollout.embedded import attention
from megatron_sspo.rollout.embedded.named_weights import NamedWeights
from megatron_sspo.rollout.embedded.routes import RouteRecorder
from megatron_sspo.rollout.embedded.sampling import draw, log_distribution
from megatron_sspo.rollout.stopping import StopStrings, read_model_text, text_of
from megatron_sspo.types import FinishReason, Prompt, Sampling
from megatron_sspo.weights.transformers_config import read_config, transformers_errors_as_user_errors


@dataclass(slots=True, eq=False)
class Row:
    """A response while it is decoded."""

    prompt: Prompt
    group: int  # index of its prompt in the call
    index: int  # index of the response in its group
    max_tokens: int
    uniforms: random.Random
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    observed: list[tuple[int, int]] = field(default_factory=list)
    routes: list[np.ndarray] = field(default_factory=list)  # of all tokens but the last, if they are recorded

    @property
    def turn_start(self) -> int:
        """The position in `tokens` at which the last turn begins."""
        return self.observed[-1][1] if self.observed else 0

    def append_observation(self, observation: Sequence[int]) -> bool:
        """Appends the tokens between two turns. Returns False and ends the row if no room for another token remains."""
        end = len(self.tokens) + len(observation)
        if end >= self.max_tokens:
            self.finish_reason = "length"
            return False
        self.observed.append((len(self.tokens), end))
        self.tokens += observation
        self.log_probs += [0.0] * len(observation)
        self.finish_reason = None
        return True


class Decoder:
    """Decodes left-padded batches with a key-value cache.

    A row's logits depend on the rest of the batch by rounding: the products of a matrix with 7 rows and with 128 rows
    may differ in the last bit. A draw at the border between two tokens, or the choice between two equal experts, may
    then change.

    Of the model's folder `config.json` and the tokenizer's files are read. `routes` records the experts of each token.

    Raises:
        UserError: Transformers makes no model of the folder, or it has no routers.
    """

    def __init__(self, model_path: Path, device: torch.device, dtype: torch.dtype, *, routes: bool) -> None:
        config = read_config(model_path)
        # Transformers chooses the experts' implementation, grouped_mm. With four layers of width 128 and 8 experts, one
        # step of 128 rows took 9 ms on one CPU thread, 9 to 11 ms with eager and 90 ms with batched_mm. With 64 experts
        # it took 19 ms, and 30 ms with eager.
        # the initial weights must not change the caller's random state
        with torch.random.fork_rng(devices=[]), transformers_errors_as_user_errors(model_path / "config.json"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention.NAME, trust_remote_code=False
            )
        self._model_path = model_path
        self.model = model.to(device).eval().requires_grad_(False)
        # Transformers 5.24 calls it `cache`, and 5.40 drops `past_key_values`
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._device = device
        self.text = read_model_text(model_path, config)
        self._weights = NamedWeights(self.model)
        self._recorder = RouteRecorder(self.model) if routes else None
        self.policy_version: int | None = None  # of the weights; None if there are none

    def begin(self, prompts: Sequence[Prompt]) -> int:
        """Checks prompts, and returns the version of the weights.

        Raises:
            UserError: no weights were loaded, or a prompt leaves no room for a response.
        """
        if self.policy_version is None:
            raise UserError("the embedded engine has no weights: call load_weights before generate")
        for prompt in prompts:
            self.text.check(prompt)
        return self.policy_version

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Copies a stream of tensors, with the names and shapes of a checkpoint on disk, into the model.

        The stream may reuse its buffers. Tied embeddings may be sent once or twice.

        Raises:
            UserError: a name is missing or unknown, or a shape is wrong. The engine then has no weights.
        """
        self.policy_version = None
        self._weights.load(tensors)
        self.policy_version = policy_version

    def close(self) -> None:
        """Frees the model's memory. The decoder cannot be used again."""
        self.policy_version = None
        self._weights.clear()
        self.model.to("meta")

    @torch.inference_mode()
    def decode(self, rows: list[Row], sampling: Sampling, stop_strings: StopStrings) -> None:
        """Decodes one turn of a batch to its end, and writes the results into its rows."""
        logits, cache, mask, lengths = self._prefill(rows)
        while True:
            mark_progress()
            tokens = self._append(rows, logits, sampling, stop_strings)
            finished = [row.finish_reason is not None for row in rows]
            if all(finished):
                return
            if any(finished):
                places = _order_without(finished)
                rows = [rows[place] for place in places]
                kept = torch.tensor(places, device=self._device)
                cache.reorder_cache(kept)
                tokens, mask, lengths = tokens[kept], mask[kept], lengths[kept]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            logits = self.model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=lengths[:, None],
                **{self._cache_argument: cache},
                use_cache=True,
            ).logits[:, -1]
            lengths = lengths + 1
            if self._recorder is not None:
                for row, routes in zip(rows, self._recorder.take(len(rows)), strict=True):
                    row.routes.append(routes)

    def _prefill(self, rows: list[Row]) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Runs each prompt of the batch once for all of its rows; after the first turn, each row runs its own.

        Returns:
            The logits after the prompts [rows, vocabulary], the cache, the attention mask [rows, longest prompt], and
            the prompts' lengths [rows].
        """
        keys = [(row.group, row.index if row.tokens else 0) for row in rows]
        prompts = {key: (*row.prompt.tokens, *row.tokens) for key, row in zip(keys, rows, strict=True)}
        lengths = torch.tensor([len(tokens) for tokens in prompts.values()])
        width = int(lengths.max())
        mask = (torch.arange(width) >= width - lengths[:, None]).long()
        padded = torch.tensor([[0] * (width - len(tokens)) + list(tokens) for tokens in prompts.values()])
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        logits = self.model(
            input_ids=padded.to(self._device),
            attention_mask=mask.to(self._device),
            position_ids=positions.to(self._device),
            **{self._cache_argument: cache},
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        place = {key: place for place, key in enumerate(prompts)}
        if self._recorder is not None:
            found = self._recorder.take(len(prompts))
            for row, key in zip(rows, keys, strict=True):
                row.routes = [found[place[key], width - len(prompts[key]) :]]
        indices = torch.tensor([place[key] for key in keys], device=self._device)
        cache.reorder_cache(indices)  # pyright: ignore  (annotated for CPU tensors alone)
        return logits[indices], cache, mask.to(self._device)[indices], lengths.to(self._device)[indices]

    def _append(self, rows: list[Row], logits: Tensor, sampling: Sampling, stop_strings: StopStrings) -> Tensor:
        """Draws a token [rows] for every row, appends it, and sets the finish reason of rows that end with it."""
        log_probs = log_distribution(logits, sampling)
        if log_probs[:, 0].isnan().any():  # a logit that is not finite spoils its whole row
            raise UserError(
                f"the weights of {self._model_path} at update {self.policy_version} give logits that are not finite: "
                "they are damaged, or training has diverged; check the model, or resume from an earlier checkpoint"
            )
        if sampling.temperature == 0:
            tokens = logits.argmax(dim=-1)
        else:
            uniforms = torch.tensor([row.uniforms.random() for row in rows], dtype=torch.float64)
            tokens = draw(log_probs, uniforms.to(self._device))
        chosen = log_probs.gather(-1, tokens[:, None]).squeeze(-1)
        for row, token, log_prob in zip(rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.tokens.append(token)
            row.log_probs.append(log_prob)
            if token in self.text.end_tokens or stop_strings.is_stopped(row.tokens, row.turn_start):
                row.finish_reason = "stop"
            elif len(row.tokens) == row.max_tokens:
                row.finish_reason = "length"
        return tokens

    def routes_of(self, row: Row) -> np.ndarray | None:
        """Returns the experts of the row's prompt and tokens as `Rollout.routes`; None if they are not recorded."""
        return None if self._recorder is None else self._recorder.pack(row.routes)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without end and padding tokens."""
        return text_of(tokens, self.text.tokenizer, self.text.end_tokens)


def _order_without(finished: Sequence[bool]) -> list[int]:
    """Returns the rows that are left. Those from the end take the places of finished ones.

    The order decides the last bit of a product, so runs of a seed depend on it.
    """
    size = len(finished) - sum(finished)
    from_the_end = (place for place in range(size, len(finished)) if not finished[place])
    return [next(from_the_end) if finished[place] else place for place in range(size)]
