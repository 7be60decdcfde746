"""Writes values and gradients of peers' loss functions for the tests: `python -m tools.peer_vectors`.

It downloads the wheels of TRL and verl into a temporary folder, takes single functions out of their source files, and
runs them with stand-ins for the trainers around them. Nothing is installed.
"""

import ast
import json
import math
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from megatron_sspo.files.writing import write_atomically
from tools.wheels import Wheel, download

OUTPUT = Path(__file__).parents[1] / "tests" / "objective" / "peer_vectors.json"
TRL = Wheel(
    requirement="trl==1.16.0",
    licence="Apache-2.0",
    sha256="c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    member="",
    member_sha256="",
)
VERL = Wheel(
    requirement="verl==0.9.1",
    licence="Apache-2.0",
    sha256="db6e6f2a8d9d5808d9ec32d357a42319fdc6967df688ff9d9810050f49bfdd14",
    member="",
    member_sha256="",
)
LENGTHS = [3, 5, 1, 4]
LENGTH = 16  # the constant of Dr. GRPO


def make_inputs() -> dict[str, list[Any]]:
    """Returns log-probs below 0 with ratios on both sides of every bound, and advantages of both signs."""
    generator = torch.Generator().manual_seed(7)
    old = -0.05 - 2 * torch.rand(sum(LENGTHS), generator=generator, dtype=torch.float64)
    moved = old + 0.4 * torch.randn(sum(LENGTHS), generator=generator, dtype=torch.float64)
    log_probs = moved.clamp(max=-0.01)
    log_probs[4] = old[4] = -2.0
    log_probs[4] += 1.5  # ρ = 4.5 where Â < 0, beyond the cap of dual clip
    return {
        "lengths": LENGTHS,
        "log_probs": [round(value, 6) for value in log_probs.tolist()],
        "old_log_probs": [round(value, 6) for value in old.tolist()],
        "advantages": [1.25, -0.75, 0.5, -1.0],
    }


class Functions:
    """Functions of the Python files of a wheel, compiled one by one with the names that they use."""

    def __init__(self, wheel: Path, **names: Any) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self.names: dict[str, Any] = {"torch": torch, "math": math, "Any": Any, **names}

    def take(self, member: str, *functions: str) -> None:
        """Adds functions of one file, methods too, to the names. Of decorators, only those of torch stay."""
        tree = ast.parse(self._archive.read(member))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in functions:
                node.decorator_list = [d for d in node.decorator_list if "torch." in ast.unparse(d)]
                node.returns = None
                for argument in (*node.args.args, *node.args.kwonlyargs):
                    argument.annotation = None
                exec(compile(ast.Module([node], []), member, "exec"), self.names)


def padded(values: Sequence[float]) -> torch.Tensor:
    """Returns values of all tokens as [S, longest], with 0 behind each sequence."""
    parts = torch.tensor(values, dtype=torch.float64).split(LENGTHS)
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)


MASK = padded([1.0] * sum(LENGTHS))


def result(name: str, ours: str, loss: torch.Tensor, log_probs: torch.Tensor, differs: str) -> dict[str, Any]:
    """Returns a case: value and gradient by the log-probs of the tokens, and how ours differs if it does."""
    (gradient,) = torch.autograd.grad(loss, log_probs)
    tokens = gradient[MASK.bool()].tolist()
    return {"name": name, "objective": ours, "loss": loss.item(), "gradient": tokens, "differs": differs}


# name in TRL, fields of its configuration, ours, how the value differs
SURROGATE = "the peer's value is a weight times log π, and ours is the weight"
TRL_CASES: list[tuple[str, Mapping[str, Any], str, str]] = [
    ("grpo", {}, "grpo()", ""),
    ("grpo", {"delta": 3.0}, "SequenceObjective(Pessimistic(Clip(), 3.0), arithmetic)", ""),
    ("grpo", {"off_policy_mask_threshold": 0.02}, "opsm(delta=0.02)", ""),
    ("grpo", {"importance_sampling_level": "sequence"}, "gspo(0.2, 0.2)", ""),
    ("dapo", {"epsilon_high": 0.28}, "dapo()", ""),
    ("bnpo", {}, "dapo(0.2, 0.2)", ""),
    ("dr_grpo", {}, f"dr_grpo({LENGTH})", ""),
    ("cispo", {"epsilon_high": 1.5}, "cispo(1.5)", SURROGATE),
    # TRL rounds temperatures to float32, where 1.05 is another number than in float64
    ("sapo", {"sapo_temperature_neg": 1.0625}, "sapo(1.0625)", ""),
    ("luspo", {"importance_sampling_level": "sequence"}, "luspo(0.2, 0.2)", ""),
    ("vespo", {}, "vespo()", SURROGATE),
]


def trl_cases(wheel: Path, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Runs `_compute_loss` of the GRPO, GMPO and RLOO trainers."""
    extremes = {"nanmin": torch.min, "nanmax": torch.max}
    grpo, gmpo, rloo = (Functions(wheel, **extremes) for _ in range(3))
    grpo.take("trl/trainer/grpo_trainer.py", "_compute_loss", "get_gamma_weights", "get_off_policy_mask")
    gmpo.take("trl/experimental/gmpo/gmpo_trainer.py", "_compute_loss")
    rloo.take("trl/trainer/rloo_trainer.py", "_compute_loss")
    found = [
        _trl_case(grpo, name, fields, ours, differs, inputs, f"GRPOTrainer {name} {dict(fields) or ''}".strip())
        for name, fields, ours, differs in TRL_CASES
    ]
    wide = {"epsilon_low": 0.4, "epsilon_high": 0.4}
    found.append(_trl_case(gmpo, "grpo", wide, "gmpo_wide()", "", inputs, "GMPOTrainer"))
    found.append(_trl_case(rloo, "rloo", {}, "rloo()", "", inputs, "RLOOTrainer"))
    return found


def _trl_case(
    functions: Functions, name: str, fields: Mapping[str, Any], ours: str, differs: str, inputs: Any, title: str
) -> dict[str, Any]:
    log_probs, old = padded(inputs["log_probs"]).requires_grad_(), padded(inputs["old_log_probs"])
    options = {"delta": None, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05} | {
        f"vespo_{key}": value
        for key, value in {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}.items()
    }
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (log_probs, torch.zeros_like(old), None),
        get_off_policy_mask=functions.names.get("get_off_policy_mask"),
        get_gamma_weights=functions.names.get("get_gamma_weights"),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x),
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(**options | {key: fields[key] for key in fields.keys() & options.keys()}),
        loss_type=name,
        **{
            "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "importance_sampling_level": "token",
            "beta": 0.0,
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "use_vllm": False,
            "vllm_importance_sampling_correction": False,
            "max_completion_length": LENGTH,
            "_entropy_bonus_enabled": False,
            "_metrics": defaultdict(lambda: defaultdict(list)),
        }
        | {key: value for key, value in fields.items() if key not in options},
    )
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    batch = {
        "prompt_ids": ids,
        "prompt_mask": MASK,
        "completion_ids": ids,
        "completion_mask": MASK,
        "advantages": torch.tensor(inputs["advantages"], dtype=torch.float64),
        "old_per_token_logps": old,
        "old_logps": (old * MASK).sum(1),
        "num_items_in_batch": MASK.sum(),
    }
    loss = functions.names["_compute_loss"](trainer, None, batch)
    return result(f"trl 1.16.0, {title}", ours, loss, log_probs, differs)


# function in verl, how it aggregates, fields of its configuration, ours, how ours differs
VERL_CASES: list[tuple[str, str, Mapping[str, Any], str, str]] = [
    ("vanilla", "token-mean", {}, "dual_clip()", ""),
    ("vanilla", "token-mean", {"clip_ratio_high": 0.28, "clip_ratio_c": 1e4}, "dapo()", ""),
    ("vanilla", "seq-mean-token-sum-norm", {"clip_ratio_c": 1e4}, f"dr_grpo({LENGTH})", ""),
    ("cispo", "token-mean", {}, "cispo(1.2, 0.8)", SURROGATE),
    ("dppo_tv", "token-mean", {"clip_ratio": 0.15, "clip_ratio_c": 2.0}, "dppo_tv(cap=2.0)", SURROGATE),
    ("dppo_kl", "token-mean", {"clip_ratio": 0.01, "clip_ratio_c": 2.0}, "dppo_kl(0.01, 2.0)", SURROGATE),
    ("gspo", "seq-mean-token-sum-norm", {}, f"replace(gspo(0.2, 0.2), average=OverLength({LENGTH}))", ""),
    ("sapo", "seq-mean-token-mean", {"tau_pos": 1.0, "tau_neg": 1.05}, "sapo()", ""),
    ("geo_mean", "token-mean", {"clip_ratio": 0.4}, "gmpo_wide()", ""),
]


class _Config(SimpleNamespace):
    """A configuration as verl's functions read it."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def verl_cases(wheel: Path, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Runs the policy losses of `core_algos`."""
    helpers = Functions(wheel)
    helpers.take("verl/utils/torch_functional.py", "masked_sum", "masked_mean")
    functional = SimpleNamespace(**{name: helpers.names[name] for name in ("masked_sum", "masked_mean")})
    functions = Functions(wheel, verl_F=functional, ActorConfig=_Config, AlgoConfig=type("AlgoConfig", (), {}))
    names = [f"compute_policy_loss_{name}" for name, *_ in VERL_CASES]
    functions.take("verl/trainer/ppo/core_algos.py", "agg_loss", *names)
    advantages = torch.tensor(inputs["advantages"], dtype=torch.float64)[:, None] * MASK
    found = []
    for name, mode, fields, ours, differs in VERL_CASES:
        log_probs, old = padded(inputs["log_probs"]).requires_grad_(), padded(inputs["old_log_probs"])
        clips = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None}
        config = _Config(**clips | {"global_batch_info": {"loss_scale_factor": LENGTH}} | dict(fields))
        compute = functions.names[f"compute_policy_loss_{name}"]
        loss, _ = compute(old, log_probs, advantages, MASK, loss_agg_mode=mode, config=config)
        title = f"verl 0.9.1, {name} {mode} {dict(fields) or ''}".strip()
        found.append(result(title, ours, loss, log_probs, differs))
    return found


def main() -> None:
    """Downloads the wheels and writes the vectors."""
    inputs = make_inputs()
    with tempfile.TemporaryDirectory() as folder:
        trl, verl = (download(wheel, Path(folder)) for wheel in (TRL, VERL))
        cases = trl_cases(trl, inputs) + verl_cases(verl, inputs)
    lines = ",\n".join(json.dumps(case) for case in cases)
    write_atomically(OUTPUT, f'{{"inputs": {json.dumps(inputs)},\n"cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases: {OUTPUT}")


if __name__ == "__main__":
    main()
