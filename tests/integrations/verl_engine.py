"""verl's FSDP2 engine with the registered policy loss, on a CPU. Runs in .venv-verl: `make test-integrations`."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples import verl_sspo
from examples.sevens import tiny_tokenizer
from megatron_sspo.objective import Segments
from tests.integrations.batches import OBJECTIVES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verl")
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder / 'rendezvous'}")
    yield verl_sspo.build_engine(folder / "model", tiny_tokenizer())
    dist.destroy_process_group()


def formula(folder, objective, rows, old, advantages):
    """Returns the gradient of the objective by each parameter, computed with Transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    log_probs = []
    for prompt, response in rows:
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        log_probs.append(logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0])
    segments = Segments.from_lengths([len(response) for _, response in rows])
    sums = objective(
        torch.cat(log_probs), torch.tensor([value for row in old for value in row]), torch.tensor(advantages), segments
    )
    (sums.loss / len(rows)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["sspo()", "gspo()", "grpo(eps_high=0.28)"])
@pytest.mark.parametrize("micro_batch_size", [32, 8])
def test_the_gradient_of_every_parameter_is_that_of_the_formula(engine, name, micro_batch_size):
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(engine.model_config.local_path)
    whole = verl_sspo.sample(engine.module, tokenizer)
    rows = [(prompt, response[: 3 + number % 14]) for number, (prompt, response) in enumerate(whole)]
    old = [(torch.tensor(row) + 0.3 * torch.randn(len(row))).tolist() for row in verl_sspo.old_log_probs(engine, rows)]
    advantages = torch.randn(len(rows)).tolist()
    actor = {**verl_sspo.ACTOR, "policy_loss": {**verl_sspo.ACTOR["policy_loss"], "objective": name}}
    batch = verl_sspo.with_advantages(rows, old, advantages, micro_batch_size)
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch, partial(ppo_loss, omega_conf_to_dataclass(actor)))
        found = {key: parameter.grad.full_tensor().clone() for key, parameter in engine.module.named_parameters()}
        engine.optimizer_zero_grad()
    expected = formula(engine.model_config.local_path, OBJECTIVES[name], rows, old, advantages)
    assert found.keys() == expected.keys()
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-5, atol=1e-6)
