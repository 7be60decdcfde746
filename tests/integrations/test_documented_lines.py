"""The lines that docs/integrations.md has for slime, prime-rl and NeMo-RL, with stand-ins for what they import."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.integrations.batches import OBJECTIVES, gradient_of_formula, ragged_mask

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
ROWS, WIDTH = 6, 7


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    log_probs = -torch.rand(ROWS, WIDTH) - 0.5
    old_log_probs = log_probs + 0.2 * torch.randn(ROWS, WIDTH)
    advantages, mask = torch.randn(ROWS), ragged_mask(ROWS, WIDTH)
    expected = gradient_of_formula(OBJECTIVES["sspo()"], log_probs, old_log_probs, advantages, mask, 1)
    leaf = log_probs.requires_grad_()
    spread = advantages[:, None].expand(-1, WIDTH)
    return {"log_probs": leaf, "old": old_log_probs, "advantages": spread, "mask": mask, "expected": expected}


def lines(monkeypatch: pytest.MonkeyPatch, module: str, **names: Any) -> dict[str, Any]:
    """Returns what the block that imports from `module` defines, with a stand-in for that module."""
    for end in [match.start() for match in re.finditer(r"\.|$", module)]:
        monkeypatch.setitem(sys.modules, module[:end], ModuleType(module[:end]))
    vars(sys.modules[module]).update(names)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if f"from {module} import" in block]
    defined: dict[str, Any] = {}
    exec(block, defined)
    return defined


def check(loss: torch.Tensor, batch: dict[str, torch.Tensor]) -> None:
    (found,) = torch.autograd.grad(loss, batch["log_probs"])
    torch.testing.assert_close(found, batch["expected"], rtol=0, atol=1e-6)


def test_slime(monkeypatch: pytest.MonkeyPatch, batch: dict[str, torch.Tensor]) -> None:
    def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths, with_entropy):
        return None, {"log_probs": list(batch["log_probs"])}

    defined = lines(
        monkeypatch, "slime.backends.megatron_utils.loss", get_log_probs_and_entropy=get_log_probs_and_entropy
    )
    given: dict[str, Any] = dict.fromkeys(("unconcat_tokens", "total_lengths", "response_lengths"))
    given |= {"loss_masks": list(batch["mask"].long()), "log_probs": list(batch["old"])}
    given |= {"advantages": list(batch["advantages"])}
    check(defined["sspo_loss"](None, given, torch.zeros(1), None)[0], batch)


def test_prime_rl(monkeypatch: pytest.MonkeyPatch, batch: dict[str, torch.Tensor]) -> None:
    names = {"LossInputs": SimpleNamespace, "LossOutputs": SimpleNamespace}
    defined = lines(monkeypatch, "prime_rl.trainer.rl.loss", **names)
    losses = [
        defined["sspo_loss"](
            SimpleNamespace(
                trainer_logprobs=batch["log_probs"][row],
                inference_logprobs=batch["old"][row],
                advantages=batch["advantages"][row],
                loss_mask=batch["mask"][row],
            )
        ).loss
        for row in range(ROWS)
    ]
    check(torch.stack(losses).sum(), batch)


def test_nemo_rl(monkeypatch: pytest.MonkeyPatch, batch: dict[str, torch.Tensor]) -> None:
    names = {"LossInputType": SimpleNamespace(LOGPROB=1), "LossType": SimpleNamespace(SEQUENCE_LEVEL=1)}
    defined = lines(monkeypatch, "nemo_rl.algorithms.loss.interfaces", **names)

    def with_first_token(values):  # of the prompt, which nothing predicts
        return torch.nn.functional.pad(values, (1, 0))

    data = {
        "token_mask": with_first_token(batch["mask"].float()),
        "sample_mask": torch.ones(ROWS),
        "prev_logprobs": with_first_token(batch["old"]),
        "advantages": with_first_token(batch["advantages"]),
    }
    loss, _ = defined["SSPOLoss"]()(
        next_token_logprobs=batch["log_probs"], data=data, global_valid_seqs=torch.tensor(2.0), global_valid_toks=None
    )
    check(2 * loss, batch)
