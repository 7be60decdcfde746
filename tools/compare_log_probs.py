"""Compares log-probs of Megatron and Transformers on a text, to check that a checkpoint is the right model.

    python tools/compare_log_probs.py MODEL [--hf DIR] [--text FILE] [--dtype float32] [--tolerance 1e-3]

MODEL is a Hugging Face folder or a Megatron checkpoint, which Megatron loads in one process. Transformers loads MODEL,
or with --hf another folder. The exit code is 0 if no log-prob differs by more than the tolerance, otherwise 1.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatron_sspo.errors import UserError

TEXT = (
    "The derivative of a sum is the sum of the derivatives. If f(x) = 3x² + 2x − 7, then f'(x) = 6x + 2, and f has its "
    "minimum at x = −1/3.\n\ndef mean(values):\n    return sum(values) / len(values)\n"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, help="a Hugging Face folder or a Megatron checkpoint")
    parser.add_argument("--hf", type=Path, help="the Hugging Face folder to compare with (default: MODEL)")
    parser.add_argument("--text", type=Path, help="a text file (default: a few lines of mathematics and code)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="maximum difference of log-probs (default: %(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=1024, help="maximum number of tokens of the text (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        text = options.text.read_text(encoding="utf-8") if options.text else TEXT
        difference = compare(options.model, options.hf or options.model, text, options.dtype, options.max_tokens)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = difference.abs()
    k3 = (difference.exp() - 1 - difference).mean()
    print(f"{len(difference)} tokens: |Δ log π| mean {size.mean():.2e}, max {size.max():.2e}; KL (k3) {k3:.2e}")
    return int(bool(size.max() > options.tolerance))


def compare(model: Path, hf: Path, text: str, dtype: str, max_tokens: int) -> torch.Tensor:
    """Returns log π by Megatron − log π by Transformers for every token of the text except the first.

    Raises:
        UserError: a folder cannot be loaded, or the text is too short.
    """
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    from megatron_sspo.data.tokenizer import load_tokenizer

    tokens = load_tokenizer(hf)(text)["input_ids"][:max_tokens]
    if len(tokens) < 2:
        raise UserError("the text has fewer than two tokens: give a longer one with --text")
    return torch.tensor(_by_megatron(model, tokens, dtype)) - _by_transformers(hf, tokens, dtype)


def _by_megatron(model: Path, tokens: list[int], dtype: Any) -> np.ndarray:
    from megatron_sspo.policy.distributed import initialize, shutdown
    from megatron_sspo.policy.policy import Policy
    from megatron_sspo.run import Model, Parallel, Prompts, Rollouts, Run
    from megatron_sspo.types import Prompt, Rollout, RolloutGroup, Sampling

    run = Run(
        name="compare",
        model=Model(path=str(model), dtype=dtype),
        prompts=Prompts(source=""),
        rollouts=Rollouts(sampling=Sampling(temperature=1.0)),
        num_updates=1,
        tokens_per_microbatch=len(tokens),
    )
    device = initialize(Parallel(), seed=0)
    rollout = Rollout(
        tokens=np.array(tokens[1:]),
        rollout_log_probs=np.zeros(len(tokens) - 1),
        text="",
        finish_reason="stop",
        policy_version=0,
    )
    group = RolloutGroup(prompt=Prompt(id="text", tokens=tuple(tokens[:1]), answer=""), rollouts=[rollout])
    try:
        [measured] = Policy(run, model, device).old_log_probs([group])
    finally:
        shutdown()
    found = measured.rollouts[0].old_log_probs
    assert found is not None
    return found


@torch.no_grad()
def _by_transformers(hf: Path, tokens: list[int], dtype: str) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(hf, dtype=getattr(torch, dtype), local_files_only=True).eval()
    log_probs = model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1)
    return log_probs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


if __name__ == "__main__":
    sys.exit(main())
