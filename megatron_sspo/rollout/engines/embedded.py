"""In-process engine on Transformers, for models that fit beside the trainer without a server."""

import queue
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from megatron_sspo.config.kinds import Count
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.rollout.embedded.decoder import Decoder, Row
from megatron_sspo.rollout.embedded.episodes import OpenEpisodes
from megatron_sspo.rollout.embedded.sampling import random_stream
from megatron_sspo.rollout.embedded.turns import QueuedSampler, TurnQueue, WaitingTurn, event_loop, take
from megatron_sspo.rollout.engine import BatchedGeneration, Episodes, Generation, Sampled
from megatron_sspo.rollout.responses import make_rollout
from megatron_sspo.rollout.stopping import StopStrings
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling
from megatron_sspo.weights.fp8 import quantized_names, rounded_stream, trained_rows


def engine(
    model_path: Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    max_batch_size: Count = 256,
    quantize: Literal["", "fp8"] = "",
    routes: bool = False,
) -> "EmbeddedEngine":
    """Builds an engine for the model in a Hugging Face folder, without weights: `load_weights` provides them.

    Args:
        model_path: a folder with `config.json` and the tokenizer's files. Weight files are not read.
        device: the device for decoding; by default the process's GPU if there is one, else the CPU.
        dtype: the dtype of the weights.
        max_batch_size: the largest number of responses that are decoded at once.
        quantize: "fp8" rounds linear layers as FP8 servers have them, to see what that does to training. Activations
            are not rounded.
        routes: whether to report the experts of each token; the loop sets it for R3.

    Raises:
        UserError: there is no `config.json` in the folder, Transformers makes no model of it, or it has no routers.
    """
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    names = quantized_names(trained_rows(Path(model_path))) if quantize else set[str]()
    decoder = Decoder(Path(model_path), torch.device(device), dtype, routes=routes)
    return EmbeddedEngine(decoder, max_batch_size, names)


class EmbeddedEngine:
    """Decodes one batch of responses after another, in turns if there are episodes.

    A row's random numbers depend only on the seed, the prompt's id and the index in the group, not on the rest of the
    batch; its logits depend on the batch by rounding: see `Decoder`.

    `rollout_log_probs` are float32, under the distribution that was sampled from: after temperature and top-p,
    normalized. Under greedy decoding they are the model's own, at temperature 1.
    """

    replicated = True

    def __init__(self, decoder: Decoder, max_batch_size: int, rounded: set[str]) -> None:
        self._decoder, self._rounded = decoder, rounded
        self._max_batch_size = max_batch_size

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Copies a stream of tensors into the model: see `Decoder.load_weights`."""
        self._decoder.load_weights(rounded_stream(tensors, self._rounded), policy_version)

    def start(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
        environment: Episodes | None = None,
    ) -> Generation:
        """Returns a generation that decodes one batch per call of `wait`."""
        lockstep = None if environment is None else environment.lockstep
        if environment is not None and lockstep is None:
            return BatchedGeneration(self._episodes(prompts, sampling, group_size, seed, environment))
        return BatchedGeneration(self._batches(prompts, sampling, group_size, seed, lockstep))

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        group_size: int,
        seed: int,
    ) -> list[RolloutGroup]:
        """Generates `group_size` responses to each prompt, in the order of the prompts.

        This method is for programs outside of the training loop, such as examples/study/mechanism.py, which want all
        groups at once. A response that reaches the model's last position ends there with finish reason "length".

        Raises:
            UserError: no weights were loaded, a prompt is empty or leaves no room for a response in the model's
                positions, or the logits are not finite.
        """
        found = dict(pair for batch in self._batches(prompts, sampling, group_size, seed, None) for pair in batch)
        return [found[place] for place in range(len(prompts))]

    def release_memory(self) -> None:
        """Does nothing: the key-value cache is freed at the end of each batch."""

    def metrics(self) -> dict[str, float]:
        """Returns no metrics."""
        return {}

    def close(self) -> None:
        """Frees the model's memory. The engine cannot be used again."""
        self._decoder.close()

    def _batches(
        self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int, seed: int, environment: Environment | None
    ) -> Generator[list[tuple[int, RolloutGroup]], None, None]:
        """Decodes batch after batch, and yields completed groups, each with the index of its prompt."""
        version = self._decoder.begin(prompts)
        rows = [
            Row(
                prompt,
                group,
                index,
                max_tokens=min(sampling.max_tokens, self._decoder.text.max_positions - len(prompt.tokens)),
                uniforms=random_stream(seed, prompt.id, prompt.draw * group_size + index),
            )
            for group, prompt in enumerate(prompts)
            for index in range(group_size)
        ]
        # Sorting prompts by length reduces padding, and a batch without any padding is faster still.
        by_length = sorted(rows, key=lambda row: len(row.prompt.tokens))
        stop_strings = StopStrings(self._decoder.text.tokenizer, sampling.stop)
        groups: list[list[Row]] = [rows[i : i + group_size] for i in range(0, len(rows), group_size)]
        template = None if environment is None else TurnTemplate(self._decoder.text.tokenizer)
        max_rows = self._max_batch_size if environment is None else min(self._max_batch_size, environment.max_episodes)
        for start in range(0, len(rows), max_rows):
            batch = by_length[start : start + max_rows]
            if environment is None or template is None:
                self._decoder.decode(batch, sampling, stop_strings)
            else:
                self._decode_turns(batch, sampling, stop_strings, environment, template)
            groups_in_batch = dict.fromkeys(row.group for row in batch)
            complete = [place for place in groups_in_batch if all(row.finish_reason for row in groups[place])]
            if complete:
                yield [(place, self._group(groups[place], version)) for place in complete]

    def _episodes(
        self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int, seed: int, episodes: Episodes
    ) -> Generator[list[tuple[int, RolloutGroup]], None, None]:
        """Decodes the turns that episodes request, and yields completed groups, each with the index of its prompt."""
        version = self._decoder.begin(())
        runner = episodes.on(self._decoder.text)
        turns: TurnQueue = queue.SimpleQueue()

        def sampler(prompt: Prompt, index: int) -> QueuedSampler:
            index += prompt.draw * group_size
            return QueuedSampler(turns, lambda number: random_stream(seed, f"{prompt.id}\0{number}", index))

        with event_loop() as submit:
            groups = {}
            for place, prompt in enumerate(prompts):
                samplers = [sampler(prompt, index) for index in range(group_size)]
                group = submit(runner.group(prompt, sampling, samplers, policy_version=version))
                group.add_done_callback(lambda _: turns.put(None))  # wakes the loop
                groups[group] = place
            while groups:
                self._decode_waiting(take(turns), sampling)
                if done := [group for group in groups if group.done()]:
                    yield [(groups.pop(group), group.result()) for group in done]

    def _decode_waiting(self, turns: Sequence[WaitingTurn], sampling: Sampling) -> None:
        """Decodes waiting turns in batches, those with the same stop strings together."""
        places = {tuple(turn.prompt): place for place, turn in enumerate(turns)}  # equal prompts are computed once
        rows: dict[tuple[str, ...], list[tuple[Row, WaitingTurn]]] = {}
        for turn in turns:
            tokens = tuple(turn.prompt)
            prompt = Prompt(id="", tokens=tokens, answer="")
            row = Row(prompt, places[tokens], 0, max_tokens=turn.max_tokens, uniforms=turn.uniforms)
            rows.setdefault(turn.stop, []).append((row, turn))
        for stop, pairs in rows.items():
            stop_strings = StopStrings(self._decoder.text.tokenizer, (*sampling.stop, *stop))
            for start in range(0, len(pairs), self._max_batch_size):
                batch = pairs[start : start + self._max_batch_size]
                self._decoder.decode([row for row, _ in batch], sampling, stop_strings)
                for row, turn in batch:
                    assert row.finish_reason is not None
                    spans = [(self._decoder.policy_version or 0, len(row.tokens))]
                    routes = self._decoder.routes_of(row)
                    turn.result.set_result(Sampled(row.tokens, row.log_probs, row.finish_reason, spans, routes))

    def _group(self, rows: Sequence[Row], version: int) -> RolloutGroup:
        return RolloutGroup(prompt=rows[0].prompt, rollouts=[self._rollout(row, version) for row in rows])

    def _decode_turns(
        self,
        rows: Sequence[Row],
        sampling: Sampling,
        stop_strings: StopStrings,
        environment: Environment,
        template: TurnTemplate,
    ) -> None:
        """Runs the turns of all rows in lockstep: decodes the rows, gets their observations, decodes the next turns."""
        with OpenEpisodes(environment, [row.prompt for row in rows]) as episodes:
            live = dict(enumerate(rows))
            while live:
                self._decoder.decode(list(live.values()), sampling, stop_strings)
                ended = {place: self._last_turn_text(row) for place, row in live.items() if row.finish_reason == "stop"}
                live = {
                    place: rows[place]
                    for place, observation in episodes.observe(ended).items()
                    if observation is not None
                    and rows[place].append_observation(template.observation_tokens(rows[place].tokens, observation))
                }

    def _rollout(self, row: Row, policy_version: int) -> Rollout:
        assert row.finish_reason is not None
        return make_rollout(
            row.tokens,
            row.log_probs,
            [],
            text=self._last_turn_text(row),
            finish_reason=row.finish_reason,
            observed=row.observed,
            tokenizer=self._decoder.text.tokenizer,
            routes=self._decoder.routes_of(row),
            policy_version=policy_version,
        )

    def _last_turn_text(self, row: Row) -> str:
        return self._decoder.text_of(row.tokens[row.turn_start :])
