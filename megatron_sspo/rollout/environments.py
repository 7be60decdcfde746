"""Rollouts of one turn, or of several in an environment, each of which progresses independently in an event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from megatron_sspo.config.user_code import user_code_errors
from megatron_sspo.environment.protocol import Environment, open_episode
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.rollout.engine import ModelText, Sampler
from megatron_sspo.rollout.responses import make_rollout
from megatron_sspo.rollout.stopping import text_of
from megatron_sspo.rollout.tasks import cancel
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling

Observe = Callable[[str], Awaitable[str | None]]


class EnvironmentEpisodes:
    """The episodes of an environment, see `Episodes`."""

    def __init__(self, environment: Environment) -> None:
        self.lockstep, self.stop = environment, environment.stop

    def on(self, model: ModelText) -> "TurnRunner":
        """See `Episodes.on`."""
        return TurnRunner(model, self.lockstep)

    def metrics(self) -> dict[str, float]:
        """Returns the environment's metrics."""
        return self.lockstep.metrics()

    def close(self) -> None:
        """Closes the environment."""
        self.lockstep.close()


class TurnRunner:
    """Runs rollouts turn by turn.

    At most `environment.max_episodes` episodes are open at a time, and the loop's thread is never blocked. Without an
    environment, rollouts have one turn.
    """

    def __init__(self, model: ModelText, environment: Environment | None) -> None:
        self.has_time_limit = environment is None
        self._model, self._environment = model, environment
        if environment is not None:
            self._template = TurnTemplate(model.tokenizer)
            self._slots = asyncio.Semaphore(environment.max_episodes)
            # Twice as many threads: `close` may be needed to end a running `observe`, so it must not wait for a thread.
            self._threads = ThreadPoolExecutor(2 * environment.max_episodes, thread_name_prefix="environment")

    async def group(
        self, prompt: Prompt, sampling: Sampling, samplers: Sequence[Sampler], *, policy_version: int
    ) -> RolloutGroup:
        """See `EpisodeRunner.group`."""
        tasks = [asyncio.create_task(self._rollout(prompt, sampling, sampler)) for sampler in samplers]
        try:
            rollouts = await asyncio.gather(*tasks)
        finally:
            await cancel(tasks)
        return RolloutGroup(prompt=prompt, rollouts=rollouts)

    async def _rollout(self, prompt: Prompt, sampling: Sampling, sampler: Sampler) -> Rollout:
        limit = min(sampling.max_tokens, self._model.max_positions - len(prompt.tokens))
        turn = await sampler.sample(prompt.tokens, max_tokens=limit)
        tokens, log_probs, spans = list(turn.tokens), list(turn.log_probs), list(turn.spans)
        observed: list[tuple[int, int]] = []
        finish_reason = turn.finish_reason
        if self._environment is not None and finish_reason == "stop":
            async with self.episode(self._environment, prompt) as observe:
                while finish_reason == "stop" and (observation := await observe(self._text(turn.tokens))) is not None:
                    between = self._template.observation_tokens(tokens, observation)
                    if len(tokens) + len(between) >= limit:
                        finish_reason = "length"
                        break
                    observed.append((len(tokens), len(tokens) + len(between)))
                    tokens += between
                    turn = await sampler.sample([*prompt.tokens, *tokens], max_tokens=limit - len(tokens))
                    tokens += turn.tokens
                    log_probs += [*[0.0] * len(between), *turn.log_probs]
                    spans += turn.spans
                    finish_reason = turn.finish_reason
        return make_rollout(
            tokens,
            log_probs,
            spans,
            text=self._text(turn.tokens),
            finish_reason=finish_reason,
            observed=observed,
            tokenizer=self._model.tokenizer,
            routes=turn.routes,
        )

    def _text(self, turn: Sequence[int]) -> str:
        return text_of(turn, self._model.tokenizer, self._model.end_tokens)

    @contextlib.asynccontextmanager
    async def episode(self, environment: Environment, prompt: Prompt) -> AsyncIterator[Observe]:
        """Opens an episode and yields its `observe`; it is closed at the end. An error of `sys.exit` ends no loop."""
        async with self._slots:
            episode = open_episode(environment, prompt)
            pending: list[Future[str | None]] = []

            def observe_in_thread(response: str) -> str | None:
                with user_code_errors("the environment"):
                    return episode.observe(response)

            def observe(response: str) -> Awaitable[str | None]:
                pending[:] = [self._threads.submit(observe_in_thread, response)]
                return asyncio.wrap_future(pending[0])

            def close() -> None:
                with user_code_errors("the environment"):
                    episode.close()
                wait(pending)  # the slot is released only after `observe` has returned

            try:
                yield observe
            finally:
                # A second cancellation of this task must not cancel `close`.
                await asyncio.shield(asyncio.wrap_future(self._threads.submit(close)))
