"""Values of a recipe: a wrong one is named with its field and with what it must be."""

from pathlib import Path

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.recipe import load_recipe
from tests.config.recipes import write

# arguments of the Run -> the message
WRONG = {
    "num_updates='ten'": "num_updates is 'ten': it must be a valid integer",
    "num_updates=0": "num_updates is 0: it must be greater than or equal to 1",
    "model=Model(path='')": "model.path is '': String should have at least 1 character",
    "model=Model(path='m', init='radnom')": "model.init is 'radnom': it must be 'pretrained' or 'random'",
    "rollouts=Rollouts(group_size=1)": "rollouts.group_size is 1: it must be greater than or equal to 2",
    "evaluation=Evaluation(sets={})": "evaluation.sets is {}: ",
    "evaluation=held_out(name='a/b')": "it must be a name of letters, digits, - and _",
    "name='a/b'": "name is 'a/b': it must be the plain name of a folder",
    # objectives
    "objective='sspo'": "objective is 'sspo': it must be an objective, such as sspo()",
    "objective=lambda a, b, c, d: None": "it must be an objective that returns Sums, whose loss is a finite scalar",
    "objective=lambda a, b: None": "that takes log_probs, old_log_probs, advantages, segments; on three tokens it",
    "objective=lambda a, b, c, d: 1 / 0": "on three tokens it raised ZeroDivisionError: division by zero",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), loss=torch.ones(()))": "an objective whose loss has "
    "a finite gradient with respect to log_probs, also where they are old_log_probs; on three tokens it has none",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), loss=(a - b).abs().sqrt().sum())": "it is [nan",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), tokens={'w': torch.ones(())})": "a dict of tensors as "
    "tokens, each with one number for each of the tokens; 'w' is tensor(1.) for 3 tokens",
    "objective=lambda a, b, c, d: (s := sspo()(a, b, c, d), b.zero_())[0]": "the objective changes old_log_probs in",
    "objective=lambda a, b, c, d: sspo()(a, b, c, d) if c.any() else Sums(loss=torch.zeros(()))": "on three tokens "
    "without advantage it has none, because the loss is detached or computed from numbers: use every log-prob, if only",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), loss=a.mean())": "on a microbatch without sequences, "
    "as a rank may have one, it is nan",
    "objective=lambda a, b, c, d: sspo()(a, b, c, d) if len(a) else Sums(loss=a.sum())": "reports values of the same "
    "names; on a microbatch without sequences, as a rank may have one, it reports none, and otherwise log_ratio, ",
    "objective=replace(sspo(), average=3)": "ValueError: average is 3, and must be an average, such as OverTokens()",
    "objective=lambda a, b, c, d: (__import__('os').chdir('/'), sspo()(a, b, c, d))[1]": "the objective has changed "
    "the working folder to /, for the trainer too",
}

# fields that contradict each other
CONTRADICTIONS = {
    "warm_start=warm_start(), penalties=Penalties(kl_coef=.1)": "penalties.kl_coef is 0.1 in a run with a warm start",
    "parallel=Parallel(data=2, expert=4)": "= 4 does not divide data × tensor × context = 2",
    "rollouts=Rollouts(sampling=Sampling(temperature=0))": "rollouts.sampling.temperature is 0.0: training needs",
    "rollouts=Rollouts(max_staleness=1)": "rollouts.max_staleness is 1 and updates_per_sync 2",
    "rollouts=Rollouts(overlong_buffer=513)": "rollouts.overlong_buffer is 513, more than",
    "rollouts=Rollouts(environment='codeact')": "set prompts.template to 'chat'",
    "rollouts=Rollouts(environment_options={'max_turns': 2})": "rollouts.environment_options is {'max_turns': 2}, but",
    "rollouts=Rollouts(agent='a:B'), kl_in_reward=.1": "it is a sum over a sequence, of which",
    "warm_start=warm_start(), kl_in_reward=.1": "kl_in_reward is 0.1 in a run with a warm start",
    "reference_every=2": "reference_every is 2 and nothing needs the reference policy: set it to 0",
    "reference_every=2, kl_in_reward=.1, lora=LoRA()": "reference_every is 2 with lora, whose reference is its base",
    "rollouts=Rollouts(agent='a:B'), penalties=Penalties(entropy_coef=.1)": "penalties are sums over sequences",
    "rollouts=Rollouts(agent='a:B'), objective=dapo()": "only a mean over sequences counts an episode",
    "rollouts=Rollouts(sampling=Sampling(top_p=.9)), old_policy='rollout'": "set top_p to 1",
    "rollouts=Rollouts(sampling=Sampling(top_k=9, min_p=.1)), old_policy='rollout'": "top_k is 9 and min_p is 0.1 ",
    "optimizer=Optimizer(offload=1), ddp={'use_distributed_optimizer': False}": "optimizer.offload is 1.0 and ddp.use_",
    "lora=LoRA(), megatron={'moe_router_bias_update_rate': .1}": "an adapter has no biases of routers",
    "tokens_per_microbatch=100": "a sequence may have 528 tokens",
}

GOOD = {
    "name='größe 2'": "größe 2",
    "output=Path('runs')": "runs",
    "output='~/runs'": str(Path.home() / "runs"),
    "reward_options={'a': [1, (2.5, None)], 'b': Path('x')}": {"a": [1, (2.5, None)], "b": Path("x")},
}


@pytest.mark.parametrize(("fields", "message"), (WRONG | CONTRADICTIONS).items(), ids=WRONG | CONTRADICTIONS)
def test_a_wrong_value_is_named_with_its_field_and_its_remedy(tmp_path, fields, message) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(str(write(tmp_path, fields)))
    assert message in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize(("fields", "value"), GOOD.items(), ids=GOOD)
def test_a_value_becomes_one_of_its_fields_type(tmp_path, fields, value) -> None:
    found = getattr(load_recipe(str(write(tmp_path, fields))), fields.partition("=")[0])
    assert found == value and type(found) is type(value)
