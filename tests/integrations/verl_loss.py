"""verl's own actor loss with the registered policy loss. Runs in .venv-verl: `make test-integrations`."""

import shlex
from pathlib import Path

import pytest
import torch
import verl
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from megatron_sspo.errors import UserError
from tests.integrations.batches import OBJECTIVES, gradient_of_formula, ragged_mask

ROWS, WIDTH, PROMPT = 8, 7, 3


def actor_config(objective: str, agg_mode: str = "seq-mean-token-mean", loss_mode: str = "megatron_sspo", **options):
    """Builds the actor's configuration as verl's workers do, from what its YAML holds."""
    return omega_conf_to_dataclass(
        {
            "_target_": "verl.workers.config.ActorConfig",
            "strategy": "fsdp",
            "rollout_n": 4,
            "ppo_micro_batch_size_per_gpu": 2,
            "loss_agg_mode": agg_mode,
            "policy_loss": {
                "_target_": "megatron_sspo.integrations.verl.PolicyLoss",
                "loss_mode": loss_mode,
                "objective": objective,
            },
            **options,
        }
    )


def batch():
    torch.manual_seed(0)
    log_probs = -torch.rand(ROWS, WIDTH, dtype=torch.float64) - 0.5
    old_log_probs = log_probs + 0.3 * torch.randn(ROWS, WIDTH, dtype=torch.float64)
    advantages = torch.randn(ROWS, dtype=torch.float64)
    return log_probs, old_log_probs, advantages, ragged_mask(ROWS, WIDTH)


def gradient_in_verl(config, log_probs, old_log_probs, advantages, mask, microbatches, processes=1, weights=None):
    """Returns the gradient by the log-probs that verl's loss function accumulates over microbatches."""
    leaf = log_probs.clone().requires_grad_()
    total = torch.zeros_like(log_probs)
    for rows in torch.arange(ROWS).chunk(microbatches * processes):
        width = int(mask[rows].sum(1).max()) + 1  # a hole makes a row longer than its number of tokens
        lengths = [min(width, WIDTH)] * len(rows)
        nested = torch.nested.nested_tensor_from_jagged

        def ragged(values, rows=rows, lengths=lengths):
            parts = [values[row, :length] for row, length in zip(rows.tolist(), lengths, strict=True)]
            return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

        # the model's output covers prompts too; token t's log-prob stands one place before it
        output = torch.cat(
            [
                torch.nn.functional.pad(leaf[row, :length], (PROMPT - 1, 1))
                for row, length in zip(rows.tolist(), lengths, strict=True)
            ]
        )
        offsets = torch.tensor([0, *[PROMPT + length for length in lengths]]).cumsum(0)
        spread = advantages[:, None].expand(-1, WIDTH) * mask
        data = TensorDict(
            {
                "prompts": ragged(torch.zeros(ROWS, PROMPT, dtype=torch.long), lengths=[PROMPT] * len(rows)),
                "responses": ragged(torch.zeros(ROWS, WIDTH, dtype=torch.long)),
                "response_mask": ragged(mask.long()),
                "old_log_probs": ragged(old_log_probs),
                "advantages": ragged(spread),
                **({} if weights is None else {"rollout_is_weights": ragged(weights)}),
            },
            batch_size=[len(rows)],
        )
        tensordict_utils.assign_non_tensor(
            data, dp_size=processes, batch_num_tokens=int(mask.sum()), global_batch_size=ROWS
        )
        loss, metrics = ppo_loss(config, {"log_probs": nested(output, offsets=offsets)}, data)
        assert {"actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/log_ratio/mean"} <= set(metrics)
        total += torch.autograd.grad(loss / processes, leaf)[0]  # data parallelism averages gradients
    return total


@pytest.mark.parametrize(("microbatches", "processes"), [(1, 1), (2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_the_formula(name, microbatches, processes):
    log_probs, old_log_probs, advantages, mask = batch()
    expected = gradient_of_formula(OBJECTIVES[name], log_probs, old_log_probs, advantages, mask, ROWS)
    found = gradient_in_verl(actor_config(name), log_probs, old_log_probs, advantages, mask, microbatches, processes)
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def config_objective(config):
    from megatron_sspo.config.expression import read_objective

    return read_objective(config.policy_loss.objective, "objective")


def test_verls_correction_multiplies_the_gradient_of_tokens():
    log_probs, old_log_probs, advantages, mask = batch()
    weights = (torch.rand(ROWS, WIDTH, dtype=torch.float64) + 0.5).masked_fill(~mask, torch.nan)
    expected = (
        gradient_of_formula(OBJECTIVES["sspo()"], log_probs, old_log_probs, advantages, mask, ROWS)
        * weights.nan_to_num()
    )
    found = gradient_in_verl(actor_config("sspo()"), log_probs, old_log_probs, advantages, mask, 2, weights=weights)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


NORM = {"agg_mode": "seq-mean-token-sum-norm"}


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        ("sspo()", {"agg_mode": "token-mean"}, r"set actor\.loss_agg_mode=seq-mean-token-mean"),
        ("dapo()", {}, r"set actor\.loss_agg_mode=token-mean"),
        ("dr_grpo(64)", NORM, r"is None.*set actor\.loss_scale_factor=64"),
    ],
)
def test_another_average_is_refused(objective, options, message):
    with pytest.raises(UserError, match=message):
        gradient_in_verl(actor_config(objective, **options), *batch(), 1)


@pytest.mark.parametrize(
    ("objective", "options", "divisor"),
    [
        ("dr_grpo(64)", NORM | {"loss_scale_factor": 64}, ROWS * 64),
        ("luspo()", NORM | {"loss_scale_factor": 1}, ROWS),
        ("tests/integrations/batches.py:mean_over_tokens", {"agg_mode": "token-mean"}, None),
    ],
)
def test_another_average_is_divided_by_its_number(objective, options, divisor):
    config = actor_config(objective, **options)
    log_probs, old_log_probs, advantages, mask = batch()
    divisor = float(mask.sum()) if divisor is None else float(divisor)
    expected = gradient_of_formula(config_objective(config), log_probs, old_log_probs, advantages, mask, divisor)
    found = gradient_in_verl(config, log_probs, old_log_probs, advantages, mask, 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_log_probs_in_half_precision_are_refused_with_a_remedy():
    from megatron_sspo.integrations.verl import policy_loss

    log_probs, old, advantages, mask = (values.bfloat16() for values in batch())
    spread = advantages[:, None].expand(-1, WIDTH)
    with pytest.raises(UserError, match=r"log-probs of the policy are torch.bfloat16.*VERL_DISABLE_FLASH_ATTN_CE"):
        policy_loss(old, log_probs, spread, mask.bool(), "seq-mean-token-mean", actor_config("sspo()"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "sspo"}, "such as sspo"),
        ({"objective": "sspo()", "loss_mode": "vanilla"}, "set loss_mode=megatron_sspo"),
    ],
)
def test_a_configuration_that_would_mislead_is_refused(options, message):
    with pytest.raises(InstantiationException, match=message):
        actor_config(**options)


def test_the_lines_of_the_documentation_are_what_verls_command_line_takes():
    """verl's whole configuration, composed as its trainer does it."""
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
    block = page.partition("python -m verl.trainer.main_ppo \\\n")[2].partition("```")[0]
    overrides = shlex.split(block.replace("\\\n", " "))
    assert len(overrides) == 4
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        composed = compose("ppo_trainer", overrides=overrides)
    actor = composed.actor_rollout_ref.actor
    actor.ppo_micro_batch_size_per_gpu = 1
    settings = omega_conf_to_dataclass(actor)
    assert config_objective(settings) == OBJECTIVES["sspo(SigLog(0.6, 0.5))"]
