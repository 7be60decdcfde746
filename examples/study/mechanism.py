"""Cosine of each objective's gradient, on responses k updates stale, with the on-policy gradient (docs/study.md, b.3).

    megatron-sspo train examples/study/recipes.py:sums --set seed=0 --set updates_per_sync=8 \\
        --set checkpoint_every=1 --set checkpoints_kept=97 --set model.init=pretrained \\
        --set model.path=runs/study/sums-warm/seed=0/model --set name=mechanism-0
    python -m examples.study.mechanism runs/mechanism-0

At the start of a cycle of the run the policy θ_0 generates G responses to each prompt. k updates later, at θ_k, each
objective's gradient on them is compared with the policy gradient on as many fresh responses of θ_k to the same prompts.
The ceiling is the cosine between the on-policy gradients of two halves of twice as many fresh responses. Rows are added
to results/cosines.csv.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from examples.study.collect import RESULTS, read_rows, write_rows
from examples.study.grid import CORE, NO_GATE, OTHER_GATES
from examples.study.recipes import sums
from megatron_sspo.config.overrides import override
from megatron_sspo.data.open import prompt_stream
from megatron_sspo.data.tokenizer import load_tokenizer
from megatron_sspo.files.reading import read_json
from megatron_sspo.objective import Objective, Segments
from megatron_sspo.reward.math import reward as math_reward
from megatron_sspo.rollout.advantages import with_advantages
from megatron_sspo.rollout.collect import score
from megatron_sspo.rollout.engines.embedded import engine
from megatron_sspo.types import Prompt, Rollout, RolloutGroup
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.formats.hf_folder import HFFolder

_FRESH_SEED = 1_000_003  # fresh responses have other random numbers than those of the start of the cycle


class Checkpoint:
    """A checkpoint of the run, as a model of Transformers that generates and differentiates."""

    def __init__(self, run: Path, update: int, model_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as parent:
            folder = model_path
            if update:
                folder = Path(parent) / "model"
                convert(run / "checkpoints" / f"update-{update:06d}", folder, config_folder=model_path)
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
            self._engine = engine(model_path)
            stored = HFFolder(folder)
            self._engine.load_weights(((name, stored.read(name)) for name in stored.shapes()), update)
        self.update = update

    def respond(self, prompts: Sequence[Prompt], group_size: int, seed: int) -> list[RolloutGroup]:
        """Returns scored groups of responses with their advantages."""
        run = sums()
        groups = self._engine.generate(prompts, run.rollouts.sampling, group_size=group_size, seed=seed)
        reward = math_reward(**run.reward_options)
        try:
            return with_advantages(score(reward, groups), run.advantage)
        finally:
            reward.close()

    def log_probs(self, pairs: Sequence[tuple[Prompt, Rollout]]) -> torch.Tensor:
        """Returns log π [T] of the response tokens, one sequence after the other."""
        rows = [[*prompt.tokens, *rollout.tokens.tolist()] for prompt, rollout in pairs]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])  # causal: padding comes after
        logits = self.model(tokens).logits[:, :-1].log_softmax(-1)
        picked = logits.gather(2, tokens[:, 1:, None])[..., 0]
        return torch.cat(
            [
                picked[row, len(prompt.tokens) - 1 : len(prompt.tokens) - 1 + len(rollout.tokens)]
                for row, (prompt, rollout) in enumerate(pairs)
            ]
        )

    def gradients(
        self, groups: Sequence[RolloutGroup], objectives: Mapping[str, Objective], old: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Returns each objective's gradient as one vector, from one forward pass.

        Args:
            old: log π_old [T]; None takes the policy's own, so that ρ = 1.
        """
        pairs = pairs_of(groups)
        log_probs = self.log_probs(pairs)
        segments = Segments.from_lengths([len(rollout.tokens) for _, rollout in pairs])
        advantages = torch.tensor([rollout.advantage for _, rollout in pairs])
        found = {}
        for label, objective in objectives.items():
            sums_ = objective(log_probs, log_probs.detach() if old is None else old, advantages, segments)
            self.model.zero_grad()
            (sums_.loss / len(pairs)).backward(retain_graph=True)
            found[label] = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
        return found


def pairs_of(groups: Sequence[RolloutGroup]) -> list[tuple[Prompt, Rollout]]:
    """Returns (prompt, rollout) of each response."""
    return [(group.prompt, rollout) for group in groups for rollout in group.rollouts]


def measure(start: Checkpoint, later: Checkpoint, prompts: Sequence[Prompt], group_size: int) -> dict[str, float]:
    """Returns the cosine of each objective's gradient, and the ceiling."""
    objectives = {label: _objective(text) for label, text in (NO_GATE | CORE | OTHER_GATES).items()}
    identity = {"": objectives["none, tokens"]}
    stale = start.respond(prompts, group_size, seed=0)
    with torch.no_grad():
        old = start.log_probs(pairs_of(stale))
    fresh = [later.respond(prompts, group_size, seed=_FRESH_SEED + half) for half in (0, 1)]
    first, second = (later.gradients(groups, identity, None)[""] for groups in fresh)
    gradients = later.gradients(stale, objectives, old)
    found = {label: _cosine(gradient, first + second) for label, gradient in gradients.items()}
    return {**found, "ceiling": _cosine(first, second)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the chosen cycles of a run, and adds the rows."""
    parser = argparse.ArgumentParser(prog="python -m examples.study.mechanism")
    parser.add_argument("run", type=Path)
    parser.add_argument("--cycles", type=int, nargs="+", default=[0, 2, 4, 6, 8, 10], help="counted from 0")
    parser.add_argument("--stale", type=int, nargs="+", default=[0, 1, 3, 7], help="k, in updates")
    parser.add_argument("--prompts", type=int, default=128, help="with 8 responses each (%(default)s)")
    options = parser.parse_args(arguments)
    config = read_json(options.run / "config.json")
    model_path, per_cycle = Path(config["model"]["path"]), config["updates_per_sync"]
    tokenizer = load_tokenizer(model_path)
    stream = prompt_stream(sums().prompts, tokenizer, seed=config["seed"] + _FRESH_SEED, shuffle=True)
    prompts = stream.prompts[: options.prompts]
    rows = [row for row in read_rows(RESULTS / "cosines.csv") if row["run"] != options.run.name]
    for cycle in options.cycles:
        start = Checkpoint(options.run, cycle * per_cycle, model_path)
        for k in options.stale:
            later = Checkpoint(options.run, cycle * per_cycle + k, model_path)
            found = measure(start, later, prompts, 8)
            rows += [
                {"run": options.run.name, "cycle": cycle, "stale": k, "objective": label, "cosine": f"{value:.4f}"}
                for label, value in found.items()
            ]
            best = f"AtanLog {found['AtanLog']:.3f}, one-sided {found['AtanLog one-sided']:.3f}"
            print(f"cycle {cycle}, {k} updates stale: ceiling {found['ceiling']:.3f}, {best}", flush=True)
            write_rows(RESULTS / "cosines.csv", rows)
    return 0


def _objective(text: str) -> Objective:
    return override(sums(), [f"objective={text}"]).objective


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


if __name__ == "__main__":
    sys.exit(main())
