"""SSPOTrainer in real training loops of TRL. Runs in .venv-trl: `make test-integrations`."""

import pytest
import torch
from datasets import Dataset
from transformers import Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig

from examples.sevens import PROMPTS, share_of_sevens, tiny_model, tiny_tokenizer
from megatron_sspo.errors import UserError
from megatron_sspo.integrations.trl import SSPOTrainer
from megatron_sspo.objective import sspo
from tests.integrations.batches import OBJECTIVES, gradient_of_formula, mean_over_tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """Returns the folder of a model with random weights."""
    tokenizer = tiny_tokenizer()
    folder = tmp_path_factory.mktemp("model")
    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def reward(completions, **_):
    return [share_of_sevens(text) for text in completions]


def config(folder, **options) -> GRPOConfig:
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 16, "max_steps": 4}
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1}
    merged = {**sizes, **quiet, "learning_rate": 3e-3, "max_grad_norm": 0.0, "bf16": False, **options}
    return GRPOConfig(output_dir=str(folder), **merged)


def trainer_of(model, args, objective, kind=SSPOTrainer) -> SSPOTrainer:
    dataset = Dataset.from_dict({"prompt": [*PROMPTS] * 16})
    return kind(model, reward, args=args, train_dataset=dataset, objective=objective)


class Comparison(TrainerCallback):
    """Compares the gradient of each optimizer step with that of the formula, over the sequences of the step."""

    def __init__(self, trainer: SSPOTrainer):
        self.trainer, self.steps, self.lengths = trainer, 0, set()
        self.largest_log_ratio = self.largest_gradient = 0.0

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        trainer = self.trainer
        slots = [step % args.steps_per_generation for step in trainer._window]
        batches = [trainer._buffered_inputs[slot] for slot in slots]
        policy = unpatched(model)
        rows = [row for batch in batches for row in rows_of(batch)]
        log_probs = pad([log_probs_of(policy, row) for row in rows])
        reference = (
            None
            if trainer.ref_model is None
            else pad([log_probs_of(unpatched(trainer.ref_model), row) for row in rows])
        )
        mask = pad([torch.ones(len(row["completion"])) for row in rows]).bool()
        values = log_probs.detach()
        old = values if rows[0]["old"] is None else pad([row["old"] for row in rows])
        ratio = 1.0 if rows[0]["ratio"] is None else pad([row["ratio"] for row in rows])
        advantages = torch.stack([row["advantage"] for row in rows])
        by_tokens = trainer.objective is mean_over_tokens
        divisor = float(mask.sum()) if by_tokens else len(rows)
        gradient = gradient_of_formula(trainer.objective, values, old, advantages, mask, divisor) * ratio
        (gradient * log_probs).sum().backward(retain_graph=True)
        if reference is not None:
            gap = (reference.detach() - log_probs) * mask
            k3 = (gap.exp() - 1 - gap).sum(1) / mask.sum(1)
            (trainer.beta * k3.mean()).backward()
        for (name, found), expected in zip(model.named_parameters(), policy.parameters(), strict=True):
            torch.testing.assert_close(
                found.grad, expected.grad, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
            )
            self.largest_gradient = max(self.largest_gradient, float(expected.grad.abs().max()))
        self.steps += 1
        self.lengths |= set(mask.sum(1).tolist())
        self.largest_log_ratio = max(self.largest_log_ratio, float(((values - old) * mask).abs().max()))


def unpatched(model):
    """Returns a copy with the forward of Transformers, which TRL has replaced in the model."""
    copied = Qwen3ForCausalLM(model.config)
    copied.load_state_dict(model.state_dict())
    return copied


def rows_of(batch):
    """Yields the sequences of a microbatch without padding."""
    for row in range(len(batch["advantages"])):
        kept = batch["completion_mask"][row].bool()
        of_tokens = {"old": "old_per_token_logps", "ratio": "importance_sampling_ratio"}
        yield {
            "prompt": batch["prompt_ids"][row][batch["prompt_mask"][row].bool()],
            "completion": batch["completion_ids"][row][kept],
            "advantage": batch["advantages"][row],
            **{name: batch[key][row][kept] if key in batch else None for name, key in of_tokens.items()},
        }


def log_probs_of(model, row):
    ids = torch.cat([row["prompt"], row["completion"]])
    logits = model(ids[None]).logits[0, len(row["prompt"]) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, row["completion"][:, None])[:, 0]


def pad(rows):
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


class WithRatios(SSPOTrainer):
    """Adds the ratios that TRL computes with vLLM."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        ratios = torch.rand(batch["completion_ids"].shape) + 0.5
        return {**batch, "importance_sampling_ratio": ratios.masked_fill(batch["completion_mask"] == 0, torch.nan)}


TWICE = {"num_iterations": 2}


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize(
    ("objective", "kind", "options"),
    [
        *(
            pytest.param(OBJECTIVES[name], SSPOTrainer, TWICE, id=name)
            for name in ("sspo()", "sspo(Pessimistic(AtanLog(), cap=3.0))", "grpo(eps_high=0.28)", "gspo()")
        ),
        pytest.param(mean_over_tokens, SSPOTrainer, {}, id="mean over tokens"),
        pytest.param(sspo(), WithRatios, {}, id="correction"),
        pytest.param(sspo(), SSPOTrainer, {"beta": 0.3}, id="penalty"),
        pytest.param(sspo(), SSPOTrainer, {"mask_truncated_completions": True}, id="empty responses"),
    ],
)
def test_the_gradient_is_that_of_the_formula(tmp_path, model, accumulation, objective, kind, options):
    """Two steps on each generation, maybe twice over: ρ is 1 in the first alone."""
    args = config(
        tmp_path,
        per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=2 * accumulation,
        **options,
    )
    trainer = trainer_of(model, args, objective, kind)
    comparison = Comparison(trainer)
    trainer.add_callback(comparison)
    trainer.train()
    assert comparison.steps == 4
    assert comparison.largest_gradient > 1e-2
    if options == TWICE:
        assert len(comparison.lengths) > 2, "the batches were not ragged"
        assert comparison.largest_log_ratio > 0.05, "the policy did not move"
        logged = set().union(*trainer.state.log_history)
        assert {"entropy", "token_weight/below_half", "token_weight/zero", "sequence_weight/mean"} <= logged


def test_a_model_learns(tmp_path, model):
    args = config(tmp_path, per_device_train_batch_size=32, num_generations=8, max_steps=40, num_iterations=2)
    trainer = trainer_of(model, args, sspo())
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert sum(rewards[:4]) / 4 < 0.1
    assert sum(rewards[-4:]) / 4 > 0.5


def test_objectives_that_cannot_be_computed_are_refused(tmp_path, model):
    with pytest.raises(UserError, match=r"GRPOConfig.loss_type is 'grpo'"):
        trainer_of(model, config(tmp_path, loss_type="grpo"), sspo())
    with pytest.raises(UserError, match="the function sspo: it must be an objective, such as sspo"):
        trainer_of(model, config(tmp_path), sspo)
    args = config(tmp_path, gradient_accumulation_steps=4, steps_per_generation=2, per_device_train_batch_size=8)
    with pytest.raises(UserError, match="not yet generated"):
        trainer_of(model, args, mean_over_tokens)


def test_a_model_in_bf16_trains(tmp_path, model):
    """TRL's log-probs are float32 for such a model, which the objective insists on."""
    args = config(tmp_path, max_steps=2, model_init_kwargs={"dtype": "bfloat16"}, num_iterations=2)
    trainer = trainer_of(model, args, sspo())
    trainer.train()
    assert trainer.state.global_step == 2
