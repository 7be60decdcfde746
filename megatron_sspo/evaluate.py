"""How good a policy is on held-out prompts: greedy pass@1, sampled avg@k, format rate."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from megatron_sspo.console import Display
from megatron_sspo.environment.open import open_environment
from megatron_sspo.environment.protocol import Environment
from megatron_sspo.errors import UserError
from megatron_sspo.preflight import prompt_stream
from megatron_sspo.resolve import call_with_options, resolve
from megatron_sspo.reward.protocol import Reward
from megatron_sspo.rollout.collect import collect
from megatron_sspo.rollout.engine import RolloutEngine, Sampling
from megatron_sspo.run import Run
from megatron_sspo.state import to_row, write_rows
from megatron_sspo.tokenizer import load_tokenizer
from megatron_sspo.types import Prompt, RolloutGroup
from megatron_sspo.weights.open_folder import open_folder


def evaluate(
    engine: RolloutEngine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    sync: Callable[[], None],
    samples: int = 0,
    seed: int = 0,
    environment: Environment | None = None,
) -> tuple[dict[str, float], list[RolloutGroup]]:
    """Answers the prompts under the engine's weights.

    Args:
        sync: gives the engine the weights, again.
        sampling: of training; pass@1 is greedy whatever its temperature.
        samples: k > 0 adds avg@k, the mean correctness over k sampled answers. A reward without the part "answer" has
            neither pass@1 nor avg@k.

    Returns:
        Numbers by name (`pass@1`, `format_rate`, `avg@k`, the mean reward and the mean of its other parts), and the
        greedy responses. The same on every process.
    """
    greedy = collect(
        engine,
        reward,
        prompts,
        replace(sampling, temperature=0.0, top_p=1.0),
        group_size=1,
        seed=seed,
        sync=sync,
        environment=environment,
    )
    rollouts = [group.rollouts[0] for group in greedy]
    numbers: dict[str, float] = {}
    for part in sorted({name for rollout in rollouts for name in rollout.reward_parts}):
        values = [rollout.reward_parts.get(part, 0.0) for rollout in rollouts]
        if part == "answer":
            numbers["pass@1"] = _mean([value == 1.0 for value in values])
        elif part == "format":
            numbers["format_rate"] = _mean([value == 1.0 for value in values])
        else:
            numbers[part] = _mean(values)
    if samples and "pass@1" in numbers:
        sampled = collect(
            engine, reward, prompts, sampling, group_size=samples, seed=seed, sync=sync, environment=environment
        )
        correct = [r.reward_parts.get("answer", 0.0) == 1.0 for group in sampled for r in group.rollouts]
        numbers[f"avg@{samples}"] = _mean(correct)
    numbers["reward"] = _mean([rollout.reward for rollout in rollouts])
    numbers["response_tokens"] = _mean([rollout.num_response_tokens for rollout in rollouts])
    return numbers, greedy


def evaluate_folder(run: Run, model: Path, *, samples: int, output: Path | None) -> dict[str, float]:
    """Evaluates a Hugging Face folder on a recipe's held-out prompts, and prints a table.

    Args:
        run: whose evaluation prompts, reward, engine and sampling are used.
        output: where to write the greedy responses, one JSON line each.

    Raises:
        UserError: the recipe has no evaluation, or the folder is not a model.
    """
    if run.evaluation is None:
        raise UserError(f"the recipe {run.name} has no evaluation prompts: give it evaluation=Evaluation(prompts=...)")
    folder = open_folder(model)
    prompts = prompt_stream(run.evaluation.prompts, load_tokenizer(model), seed=run.seed, shuffle=False).prompts
    build_reward = resolve("reward", run.reward, "reward")
    build_engine = resolve("rollout", run.rollouts.engine, "engine")
    display = Display(silent=False)
    display.say(f"{model}: {len(prompts)} prompts of {run.evaluation.prompts.source}")
    with ExitStack() as stack:
        reward = call_with_options(build_reward, run.reward_options, f"the reward {run.reward!r}")
        stack.callback(reward.close)
        environment = stack.enter_context(open_environment(run.rollouts))
        what = f"the engine {run.rollouts.engine!r}"
        engine = call_with_options(build_engine, run.rollouts.options, what, model)
        stack.callback(engine.close)

        def sync() -> None:
            engine.load_weights(((name, folder.read(name)) for name in folder.shapes()), 0)

        sync()
        numbers, responses = evaluate(
            engine,
            reward,
            prompts,
            run.rollouts.sampling,
            sync=sync,
            samples=samples,
            seed=run.seed,
            environment=environment,
        )
    if output is not None:
        write_rows(output, map(to_row, responses))
    display.table(str(model), ["", "value"], [(name, f"{value:.3f}") for name, value in numbers.items()])
    return numbers


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
