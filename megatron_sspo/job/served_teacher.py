"""A teacher behind SGLang servers, which score the policy's tokens with weights of their own."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from megatron_sspo.batching.holders import with_field
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.rollout.engines.sglang import SGLangEngine
from megatron_sspo.rollout.servers.options import Options, check
from megatron_sspo.rollout.servers.process import find_python
from megatron_sspo.run import Run
from megatron_sspo.types import Batch, Prompt, Rollout, RolloutGroup

_IN_FLIGHT = 32  # sequences of each server, which computes thousands of their tokens at once
_CHECK_SECONDS = 2.0  # between two health checks
_REMEDY = "the teacher needs servers of SGLang that have the policy's vocabulary and take its longest sequences"


class ServedTeacher(SGLangEngine):
    """The servers of `Run.teacher`. Rank 0 drives them, and those that the run owns are restarted if they fail.

    Args:
        folder: the run's folder; the servers' logs are in its folder `teacher`.

    Raises:
        UserError: SGLang is not installed, a server does not start, or its tokenizer has another vocabulary.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        assert run.teacher is not None
        teacher, is_driver = run.teacher, agree.is_main()
        self._top_k = teacher.top_k
        # an override would hide from the server how the weights of its folder are quantized
        own = {"load_format": "auto", "json_model_override_args": "{}", **(teacher.server or {})}
        options = Options(
            urls=teacher.urls,
            server=None if teacher.urls else own,
            python=run.rollouts.options.get("python"),
            model_dtype=run.model.dtype,
            run_folder=folder / "teacher",
        )
        with _named():
            check(options)
            python = find_python(options.python) if is_driver and not teacher.urls else None
            super().__init__(Path(teacher.path or run.model.path), options, python, is_driver)
            if is_driver:
                self.pool.version = 0
                self._count_as_ready()
                self._slots = asyncio.Semaphore(_IN_FLIGHT * len(self.pool.servers))
                try:
                    self._check_vocabulary(load_tokenizer(Path(run.model.path)))
                except BaseException:
                    self.close()
                    raise

    def log_probs(self, batches: Sequence[Batch]) -> list[list[RolloutGroup]]:
        """Returns the batches with the teacher's log-prob of every response token, on all ranks. A collective.

        Raises:
            UserError: too few servers are left, or they reject a sequence.
        """
        taught = []
        for batch in batches:
            scores = agree.run_on_rank_0(partial(self._score_batch, batch))
            for name in scores[0] if scores else ():
                batch = with_field(batch, name, {index: of[name] for index, of in enumerate(scores)}, ())
            taught.append(list(batch))
        return taught

    def _score_batch(self, batch: Batch) -> list[dict[str, np.ndarray]]:
        sequences = [(group.prompt, rollout, n) for n, group in enumerate(batch) for rollout in group.rollouts]

        async def scores() -> list[dict[str, np.ndarray]]:
            supervision = asyncio.create_task(self._supervise())
            try:
                return await asyncio.gather(*(self._score(*sequence) for sequence in sequences))
            finally:
                supervision.cancel()

        with _named():
            return self._run(scores(), restart_failed=True)

    async def _score(self, prompt: Prompt, rollout: Rollout, number: int) -> dict[str, np.ndarray]:
        tokens, start = rollout.tokens.tolist(), len(prompt.tokens) - 1
        content = {
            "input_ids": [*prompt.tokens, *tokens],
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            "top_logprobs_num": self._top_k,
        }
        if not tokens:
            return self._fields(np.zeros(0), np.zeros((0, 2)))
        async with self._slots:
            seconds = self._options.request_seconds
            answer = await self._requests.ask("/generate", content, number, seconds=seconds, remedy=_REMEDY)
        info = answer["meta_info"]
        rows = info["input_token_logprobs"][1:]  # the first is the prompt's last token
        values = np.array([row[0] for row in rows], np.float32)
        if len(values) != len(tokens) or not np.isfinite(values).all():
            raise UserError(f"a server has not scored the tokens of prompt {prompt.id} that it was sent")
        own = rollout.response_mask()
        top = [pair[:2] for row in info["input_top_logprobs"][1:] for pair in row] if self._top_k else []
        pairs = np.where(own.repeat(self._top_k)[:, None], np.array(top).reshape(-1, 2), 0)
        return self._fields(np.where(own, values, 0), pairs)

    def _fields(self, values: np.ndarray, pairs: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the teacher's fields of a rollout from log-probs [n] and the likeliest (log-prob, token) [n·k, 2]."""
        fields: dict[str, np.ndarray] = {"teacher_log_probs": values.astype(np.float32)}
        if self._top_k:
            fields["teacher_top_log_probs"] = pairs[:, 0].astype(np.float32)
            fields["teacher_top_tokens"] = pairs[:, 1].astype(np.int32)
        return fields

    async def _supervise(self) -> None:
        """Checks the servers; one that has started again has loaded its weights itself."""
        while True:
            await self.pool.check()
            self._count_as_ready()
            await asyncio.sleep(_CHECK_SECONDS)

    def _count_as_ready(self) -> None:
        for server in self.pool.up():
            server.version = self.pool.version

    def _check_vocabulary(self, tokenizer: Any) -> None:
        """Compares the texts of all tokens, without white space, which libraries clean up differently."""
        tokens = list(range(len(tokenizer)))
        for number in range(len(self.pool.servers)):
            content = {"tokens": tokens, "skip_special_tokens": False}
            answer = self._run(self._requests.ask("/detokenize", content, number, remedy=_REMEDY))
            own = tokenizer.decode(tokens, skip_special_tokens=False)
            if "".join(answer["text"].split()) != "".join(own.split()):
                raise UserError(
                    "a server's tokenizer has another vocabulary than the model's: a teacher scores the policy's own "
                    "tokens, so choose one of the same tokenizer"
                )


@contextmanager
def _named() -> Iterator[None]:
    """Says of an error that it is about the teacher's servers, and not about those of the rollouts."""
    try:
        yield
    except UserError as error:
        raise UserError(f"teacher: {error}") from error
