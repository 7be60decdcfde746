"""Rewards and engines of the e2e tests, named as /path/plugins.py:attribute."""

import gc
import math
import os
import random
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import torch

from megatron_sspo.rollout.engine import BatchedGeneration
from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling

Batches = Generator[list[tuple[int, RolloutGroup]], None, None]


class Scores:
    def __init__(self, spoilt_prompt: str) -> None:
        self._spoilt_prompt = spoilt_prompt

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        return [self._parts(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def remarks(self, prompts: Sequence[Prompt]) -> list[str]:
        return [f"{len(prompts)} rows are fine"]

    def close(self) -> None:
        pass

    def _parts(self, prompt: Prompt, response: str) -> dict[str, float]:
        if prompt.id.endswith(self._spoilt_prompt):
            return {"answer": math.nan}
        return {
            "answer": float(sum(map(response.count, "13579")) % 2),
            "length": 0.1 * sum(character.isalpha() for character in response),
        }


def vowels(spoilt_prompt: str = "none") -> Scores:
    """Returns a reward that differs within most groups, so that a random model can learn from it."""
    return Scores(spoilt_prompt)


class Held(Scores):
    """A reward that records the prompts it scores, and after `after` of them waits while a file `hold` exists."""

    def __init__(self, folder: Path, after: int) -> None:
        super().__init__("none")
        self._folder, self._after, self._scored = folder, after, 0

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[dict[str, float]]:
        deadline = time.monotonic() + 240
        while self._scored >= self._after and (self._folder / "hold").exists() and time.monotonic() < deadline:
            (self._folder / "held").touch()
            time.sleep(0.02)
        self._scored += len(prompts)
        with (self._folder / "scored").open("a") as file:
            file.writelines(f"{prompt.id}\n" for prompt in prompts)
        return super().score(prompts, responses)


def held(folder: str, after: int) -> Held:
    """Returns the reward of tests that kill or stop an evaluation."""
    return Held(Path(folder), after)


class Odd:
    """An engine that returns random tokens; the first response of a group is empty."""

    replicated = True

    def __init__(self, nan_from: int, fail_on_rank: str) -> None:
        self._nan_from, self._fail_on_rank = nan_from, fail_on_rank
        self._version = 0

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        for _ in tensors:
            pass
        self._version = policy_version

    def start(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int, environment: None
    ) -> BatchedGeneration:
        return BatchedGeneration(self._generate(prompts, sampling, group_size))

    def _generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> Batches:
        if os.environ.get("RANK", "0") == self._fail_on_rank:
            raise RuntimeError("the engine fell over")
        groups = [
            RolloutGroup(prompt=p, rollouts=[self._rollout(p, index, sampling) for index in range(group_size)])
            for p in prompts
        ]
        yield list(enumerate(groups))

    def release_memory(self) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass

    def _rollout(self, prompt: Prompt, index: int, sampling: Sampling) -> Rollout:
        draw = random.Random(f"{prompt.id}:{index}:{self._version}")
        tokens = tuple(
            draw.randrange(3, 50) for _ in range(0 if index == 0 else draw.randrange(1, sampling.max_tokens))
        )
        log_prob = math.nan if self._version >= self._nan_from else -3.0
        return Rollout(
            tokens=tokens,
            rollout_log_probs=(log_prob,) * len(tokens),
            text="".join(chr(ord("0") + token % 10) for token in tokens),
            finish_reason="stop",
            policy_version=self._version,
        )


def odd(model_path: Path, nan_from: int = 1_000_000, fail_on_rank: int | str = "none") -> Odd:
    """Returns an engine as a user's own plug-in."""
    return Odd(nan_from, str(fail_on_rank))


class Served(Odd):
    """The same engine as servers that rank 0 drives: it may answer later than it is asked, with the weights of then.

    Every load of weights, every generation that begins and every one that is waited for is a line of `events`.
    With `release_memory` it raises where a server would take memory while the trainer holds gradients.
    """

    replicated = False

    def __init__(self, events: Path, release_memory: bool) -> None:
        super().__init__(1_000_000, "none")
        self._events, self._takes_turns = events, release_memory
        self._take_memory()

    def _take_memory(self) -> None:
        from megatron.core.distributed import DistributedDataParallel

        if self._takes_turns:
            found = [each for each in gc.get_objects() if type(each) is DistributedDataParallel]
            buffers = [buffer for each in found for buffer in each.buffers + each.expert_parallel_buffers]
            assert buffers and not any(buffer.grad_data.untyped_storage().nbytes() for buffer in buffers)

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        self._take_memory()
        super().load_weights(tensors, policy_version)
        self._note(f"load {policy_version}")

    def start(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, group_size: int, seed: int, environment: None
    ) -> BatchedGeneration:
        self._note(f"begin {group_size}")
        return super().start(prompts, sampling, group_size=group_size, seed=seed, environment=environment)

    def _generate(self, prompts: Sequence[Prompt], sampling: Sampling, group_size: int) -> Batches:
        self._note(f"wait {group_size}")
        yield from super()._generate(prompts, sampling, group_size)

    def _note(self, event: str) -> None:
        with self._events.open("a") as file:
            file.write(f"{event}\n")


def served(model_path: Path, events: str, release_memory: bool = False) -> Served:
    """Returns an engine that answers evaluations while the trainer goes on, unless they take turns."""
    return Served(Path(events), release_memory)


class Constant(Scores):
    """A reward that is 0.5 for every response."""

    def _parts(self, prompt: Prompt, response: str) -> dict[str, float]:
        return {"answer": 0.5}


def constant() -> Constant:
    """Returns the reward of runs that learn nothing."""
    return Constant("none")
