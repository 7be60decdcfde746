"""The held-out sets of a run: their prompts, rewards, environments and sampling parameters."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from megatron_sspo.config.resolve import check_plugin
from megatron_sspo.data.open import prompt_stream
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.reward.protocol import check_prompts
from megatron_sspo.rollout.open_episodes import check_episodes
from megatron_sspo.run import HeldOut, Rollouts, Run
from megatron_sspo.types import Sampling


def held_out_streams(run: Run, tokenizer: Any) -> dict[str, PromptStream]:
    """Returns the stream of each set: its prompts and its dropped rows.

    Raises:
        UserError: a set cannot be read, has no rows, or has a prompt that is too long; the message names the set.
    """
    found: dict[str, PromptStream] = {}
    for name, held_out in sets_of(run).items():
        with _naming(name):
            found[name] = prompt_stream(held_out.prompts, tokenizer, seed=run.seed, shuffle=False)
    return found


@contextmanager
def _naming(set_name: str) -> Iterator[None]:
    """Adds the name of a set to UserErrors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"the evaluation set {set_name}: {error}") from error


def sets_of(run: Run) -> Mapping[str, HeldOut]:
    """Returns the run's held-out sets; empty if the run has no evaluation."""
    return run.evaluation.sets if run.evaluation else {}


def check_held_out(run: Run, streams: Mapping[str, PromptStream], tokenizer: Any) -> None:
    """Checks the reward and the environment of each set, and that the reward can score each of its prompts.

    Raises:
        UserError: a plug-in is missing, lacks an option, or does not fit prompts, template or tokenizer.
    """
    for set_name, held_out in sets_of(run).items():
        name, options = reward_of(run, held_out)
        reward = check_plugin("reward", name, options)
        if not run.rollouts.agent:  # which may reward its episodes itself, by rows without a gold answer
            with _naming(set_name):
                check_prompts(reward, streams[set_name].prompts, options)
        rollouts = rollouts_of(run, held_out)
        check_episodes(rollouts, tokenizer)
        if rollouts.environment and held_out.prompts.template != "chat":
            raise UserError(
                f"the evaluation set {set_name} has the environment {rollouts.environment!r} and the template "
                f"{held_out.prompts.template!r}: observations are messages of a chat, so set its template to 'chat'"
            )


def sampling_of(run: Run, held_out: HeldOut) -> Sampling:
    """Returns the sampling parameters of the rollouts, with the set's own limit on response tokens."""
    sampling = run.rollouts.sampling
    return replace(sampling, max_tokens=held_out.max_tokens) if held_out.max_tokens else sampling


def settings_of(run: Run, held_out: HeldOut) -> dict[str, Any]:
    """Returns everything that answers and rewards depend on, besides model and prompts, as JSON values."""
    name, options = reward_of(run, held_out)
    sampling, rollouts = sampling_of(run, held_out), rollouts_of(run, held_out)
    found = {
        "engine": run.rollouts.engine,
        "reward": name,
        "reward_options": dict(options),
        "environment": rollouts.environment,
        "environment_options": dict(rollouts.environment_options) if rollouts.environment else {},
        "sampling": asdict(sampling),
        "seed": run.seed,
    }
    if rollouts.agent:
        endpoint = asdict(rollouts.endpoint)
        found |= {
            "agent": rollouts.agent,
            "agent_options": dict(rollouts.agent_options),
            "endpoint": {key: endpoint[key] for key in endpoint if key not in ("address", "max_episodes")},
            "max_prompt_tokens": held_out.prompts.max_tokens,
        }
    return json.loads(json.dumps(found, default=str))


def reward_of(run: Run, held_out: HeldOut) -> tuple[str, Mapping[str, Any]]:
    """Returns the name and the options of a set's reward, by default the run's."""
    name = held_out.reward or run.reward
    return name, held_out.reward_options or (run.reward_options if name == run.reward else {})


def rollouts_of(run: Run, held_out: HeldOut) -> Rollouts:
    """Returns the run's rollout options with the set's environment, which takes the place of the run's agent."""
    own = run.rollouts
    name = own.environment if held_out.environment is None else held_out.environment
    options = held_out.environment_options or (own.environment_options if name == own.environment else {})
    agent = {} if held_out.environment is None else {"agent": "", "agent_options": {}}
    return replace(own, environment=name, environment_options=options, **agent)
