"""In-process engine on Transformers, for models that fit beside the trainer without a server."""

import inspect
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from megatron_sspo.agent.agents import Agents
from megatron_sspo.arrays.convert import log_prob_array, token_array
from megatron_sspo.config.kinds import Count
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.errors import UserError
from megatron_sspo.rollout.agents.episodes import AgentEpisodes
from megatron_sspo.rollout.agents.tree import Sampled
from megatron_sspo.rollout.embedded import attention
from megatron_sspo.rollout.embedded.agents import QueuedSampler, TurnQueue, WaitingTurn, event_loop
from megatron_sspo.rollout.embedded.cache import key_value_cache, order_without
from megatron_sspo.rollout.embedded.episodes import Episodes
from megatron_sspo.rollout.embedded.named_weights import NamedWeights
from megatron_sspo.rollout.embedded.sampling import draw, log_distribution, random_stream
from megatron_sspo.rollout.engine import BatchedGeneration, Generation
from megatron_sspo.rollout.stopping import StopStrings, end_tokens, read_config, transformers_errors_as_user_errors
from megatron_sspo.types import FinishReason, Prompt, Rollout, RolloutGroup, Sampling


def engine(
    model_path: Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    max_batch_size: Count = 256,
) -> "EmbeddedEngine":
    """Builds an engine for the model in a Hugging Face folder, without weights: `load_weights` provides them.

    Args:
        model_path: a folder with `config.json` and the tokenizer's files. Weight files are not read.
        device: the device for decoding; by default the process's GPU if there is one, else the CPU.
        dtype: the dtype of the weights.
        max_batch_size: the largest number of responses that are decoded at once.

    Raises:
        UserError: there is no `config.json` in the folder, Transformers makes no model of it, or `max_batch_size` is
            not positive.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    return EmbeddedEngine(Path(model_path), torch.device(device), dtype, max_batch_size)


@dataclass(slots=True, eq=False)
class _Row:
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


def _turn_stream(seed: int, prompt_id: str, index: int, number: int) -> random.Random:
    """Returns the random numbers of one turn of an episode."""
    return random_stream(seed, f"{prompt_id}\0{number}", index)


class EmbeddedEngine:
    """Decodes left-padded batches with a key-value cache.

    A row's random numbers depend only on the seed, the prompt's id and the index in the group, not on the rest of the
    batch. Its logits depend on the batch by rounding: the products of a matrix with 7 rows and with 128 rows may differ
    in the last bit. A draw at the border between two tokens, or the choice between two equal experts, may then change.

    `rollout_log_probs` are float32, under the distribution that was sampled from: after temperature and top-p,
    normalized. Under greedy decoding they are the model's own, at temperature 1.
    """

    replicated = True

    def __init__(self, model_path: Path, device: torch.device, dtype: torch.dtype, max_batch_size: int) -> None:
        if not (model_path / "config.json").exists():
            raise UserError(f"{model_path} has no config.json: name a Hugging Face model folder")
        if max_batch_size < 1:
            raise UserError(f"max_batch_size is {max_batch_size}: it must be at least 1")
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
        self._model = model.to(device).eval().requires_grad_(False)
        # Transformers 5.24 calls it `cache`, and 5.40 drops `past_key_values`
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._device = device
        self._tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
        self._weights = NamedWeights(self._model)
        self._end_tokens = end_tokens(model_path, config, self._tokenizer)
        self._vocab_size: int = config.get_text_config().vocab_size
        self._max_positions: int = config.get_text_config().max_position_embeddings
        self._max_batch_size = max_batch_size
        self._policy_version: int | None = None

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Copies a stream of tensors, with the names and shapes of a checkpoint on disk, into the model.

        The stream may reuse its buffers. Tied embeddings may be sent once or twice.

        Raises:
            UserError: a name is missing, unknown or repeated, or a shape is wrong. The engine then has no weights.
        """
        self._policy_version = None
        self._weights.load(tensors)
        self._policy_version = policy_version

    def start(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Environment | Agents | None = None,
    ) -> Generation:
        """Returns a generation that decodes one batch per call of `wait`."""
        if isinstance(environment, Agents):
            return BatchedGeneration(self._episodes(prompts, sampling, group_size, seed, environment))
        return BatchedGeneration(self._batches(prompts, sampling, group_size, seed, environment))

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Environment | None = None,
    ) -> list[RolloutGroup]:
        """Generates `group_size` responses to each prompt, in the order of the prompts.

        This method is for programs outside of the training loop, such as examples/study/mechanism.py, which want all
        groups at once. A response that reaches the model's last position ends there with finish reason "length".

        Raises:
            UserError: no weights were loaded, or a prompt is empty, has a token outside the vocabulary, or leaves no
                room for a response in the model's positions, or the logits are not finite. In an environment also: the
                chat template does not support a second turn, or the environment is broken.
        """
        found = dict(
            pair for batch in self._batches(prompts, sampling, group_size, seed, environment) for pair in batch
        )
        return [found[place] for place in range(len(prompts))]

    def release_memory(self) -> None:
        """Does nothing: the key-value cache is freed at the end of each batch."""

    def metrics(self) -> dict[str, float]:
        """Returns no metrics."""
        return {}

    def close(self) -> None:
        """Frees the model's memory. The engine cannot be used again."""
        self._policy_version = None
        self._weights.clear()
        self._model.to("meta")

    def _batches(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        group_size: int,
        seed: int,
        environment: Environment | None,
    ) -> Generator[list[tuple[int, RolloutGroup]], None, None]:
        """Decodes batch after batch, and yields completed groups, each with the index of its prompt."""
        if self._policy_version is None:
            raise UserError("the embedded engine has no weights: call load_weights before generate")
        for prompt in prompts:
            self._check_prompt(prompt)
        rows = [
            _Row(
                prompt,
                group,
                index,
                max_tokens=min(sampling.max_tokens, self._max_positions - len(prompt.tokens)),
                uniforms=random_stream(seed, prompt.id, index),
            )
            for group, prompt in enumerate(prompts)
            for index in range(group_size)
        ]
        # Sorting prompts by length reduces padding, and a batch without any padding is faster still.
        by_length = sorted(rows, key=lambda row: len(row.prompt.tokens))
        stop_strings = StopStrings(self._tokenizer, sampling.stop)
        groups: list[list[_Row]] = [rows[i : i + group_size] for i in range(0, len(rows), group_size)]
        template = None if environment is None else TurnTemplate(self._tokenizer)
        max_rows = self._max_batch_size if environment is None else min(self._max_batch_size, environment.max_episodes)
        for start in range(0, len(rows), max_rows):
            batch = by_length[start : start + max_rows]
            if environment is None or template is None:
                self._decode(batch, sampling, stop_strings)
            else:
                self._decode_turns(batch, sampling, stop_strings, environment, template)
            groups_in_batch = dict.fromkeys(row.group for row in batch)
            complete = [place for place in groups_in_batch if all(row.finish_reason for row in groups[place])]
            if complete:
                yield [(place, self._group(groups[place])) for place in complete]

    def _episodes(
        self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int, seed: int, agents: Agents
    ) -> Generator[list[tuple[int, RolloutGroup]], None, None]:
        """Decodes the turns that agents request, and yields completed groups, each with the index of its prompt."""
        if self._policy_version is None:
            raise UserError("the embedded engine has no weights: call load_weights before generate")
        episodes = AgentEpisodes(
            agents, self._tokenizer, max_positions=self._max_positions, vocab_size=self._vocab_size
        )
        turns = TurnQueue()

        def samplers(prompt: Prompt) -> list[QueuedSampler]:
            streams = [partial(_turn_stream, seed, prompt.id, index) for index in range(group_size)]
            return [QueuedSampler(turns, stream) for stream in streams]

        with event_loop() as submit:
            version = self._policy_version
            groups = {
                submit(episodes.group(prompt, sampling, samplers(prompt), policy_version=version)): place
                for place, prompt in enumerate(prompts)
            }
            for group in groups:
                group.add_done_callback(lambda _: turns.wake())
            while groups:
                self._decode_waiting(turns.take(), sampling)
                if done := [group for group in groups if group.done()]:
                    yield [(groups.pop(group), group.result()) for group in done]

    def _decode_waiting(self, turns: Sequence[WaitingTurn], sampling: Sampling) -> None:
        """Decodes turns of agents in batches, those with the same stop strings together."""
        places = {tuple(turn.prompt): place for place, turn in enumerate(turns)}  # equal prompts are computed once
        rows: dict[tuple[str, ...], list[tuple[_Row, WaitingTurn]]] = {}
        for turn in turns:
            tokens = tuple(turn.prompt)
            prompt = Prompt(id="", tokens=tokens, answer="")
            row = _Row(prompt, places[tokens], 0, max_tokens=turn.max_tokens, uniforms=turn.uniforms)
            rows.setdefault(turn.stop, []).append((row, turn))
        for stop, pairs in rows.items():
            stop_strings = StopStrings(self._tokenizer, (*sampling.stop, *stop))
            for start in range(0, len(pairs), self._max_batch_size):
                batch = pairs[start : start + self._max_batch_size]
                self._decode([row for row, _ in batch], sampling, stop_strings)
                for row, turn in batch:
                    assert row.finish_reason is not None
                    spans = [(self._policy_version or 0, len(row.tokens))]
                    turn.result.set_result(Sampled(row.tokens, row.log_probs, row.finish_reason, spans))

    def _group(self, rows: Sequence[_Row]) -> RolloutGroup:
        assert self._policy_version is not None
        return RolloutGroup(prompt=rows[0].prompt, rollouts=[self._rollout(row, self._policy_version) for row in rows])

    def _check_prompt(self, prompt: Prompt) -> None:
        if not prompt.tokens:
            raise UserError(f"prompt {prompt.id} has no tokens: check its template")
        if len(prompt.tokens) >= self._max_positions:
            raise UserError(
                f"prompt {prompt.id} has {len(prompt.tokens)} tokens and the model {self._max_positions} positions, "
                "which leaves no room for a response: drop or shorten it"
            )
        if min(prompt.tokens) < 0 or max(prompt.tokens) >= self._vocab_size:
            raise UserError(
                f"prompt {prompt.id} has a token outside the model's vocabulary of {self._vocab_size}: "
                "was it rendered with another tokenizer?"
            )

    def _decode_turns(
        self,
        rows: Sequence[_Row],
        sampling: Sampling,
        stop_strings: StopStrings,
        environment: Environment,
        template: TurnTemplate,
    ) -> None:
        """Runs the turns of all rows in lockstep: decodes the rows, gets their observations, decodes the next turns."""
        with Episodes(environment, [row.prompt for row in rows]) as episodes:
            live = dict(enumerate(rows))
            while live:
                self._decode(list(live.values()), sampling, stop_strings)
                ended = {place: self._last_turn_text(row) for place, row in live.items() if row.finish_reason == "stop"}
                live = {
                    place: rows[place]
                    for place, observation in episodes.observe(ended).items()
                    if observation is not None
                    and rows[place].append_observation(template.observation_tokens(rows[place].tokens, observation))
                }

    @torch.inference_mode()
    def _decode(self, rows: list[_Row], sampling: Sampling, stop_strings: StopStrings) -> None:
        """Decodes one turn of a batch to its end, and writes the results into its rows."""
        logits, cache, mask, lengths = self._prefill(rows)
        while True:
            tokens = self._append(rows, logits, sampling, stop_strings)
            finished = [row.finish_reason is not None for row in rows]
            if all(finished):
                return
            if any(finished):
                places = order_without(finished)
                rows = [rows[place] for place in places]
                kept = torch.tensor(places, device=self._device)
                cache.batch_select_indices(kept)
                tokens, mask, lengths = tokens[kept], mask[kept], lengths[kept]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            logits = self._model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=lengths[:, None],
                **{self._cache_argument: cache},
                use_cache=True,
            ).logits[:, -1]
            lengths = lengths + 1

    def _prefill(self, rows: list[_Row]) -> tuple[Tensor, DynamicCache, Tensor, Tensor]:
        """Runs each prompt of the batch once, and shares the result between the prompt's rows.

        After the first turn, each row runs its own prompt and tokens.

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
        cache = key_value_cache(self._model.config)
        logits = self._model(
            input_ids=padded.to(self._device),
            attention_mask=mask.to(self._device),
            position_ids=positions.to(self._device),
            **{self._cache_argument: cache},
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        place = {key: place for place, key in enumerate(prompts)}
        indices = torch.tensor([place[key] for key in keys], device=self._device)
        cache.batch_select_indices(indices)
        return logits[indices], cache, mask.to(self._device)[indices], lengths.to(self._device)[indices]

    def _append(self, rows: list[_Row], logits: Tensor, sampling: Sampling, stop_strings: StopStrings) -> Tensor:
        """Draws a token for every row, appends it, and sets the finish reason of rows that end with it.

        Returns:
            The tokens [rows].
        """
        log_probs = log_distribution(logits, sampling.temperature, sampling.top_p)
        if log_probs[:, 0].isnan().any():  # a logit that is not finite spoils its whole row
            raise UserError(
                f"the weights of {self._model_path} at update {self._policy_version} give logits that are not finite: "
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
            if token in self._end_tokens or stop_strings.is_stopped(row.tokens, row.turn_start):
                row.finish_reason = "stop"
            elif len(row.tokens) == row.max_tokens:
                row.finish_reason = "length"
        return tokens

    def _rollout(self, row: _Row, policy_version: int) -> Rollout:
        assert row.finish_reason is not None
        return Rollout(
            tokens=token_array(row.tokens),
            rollout_log_probs=log_prob_array(row.log_probs),
            text=self._last_turn_text(row),
            finish_reason=row.finish_reason,
            policy_version=policy_version,
            observed=tuple(row.observed),
            transcript=self._decode_tokens(row.tokens) if row.observed else "",
        )

    def _last_turn_text(self, row: _Row) -> str:
        """Returns the last turn, decoded."""
        return self._decode_tokens(row.tokens[row.turn_start :])

    def _decode_tokens(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
