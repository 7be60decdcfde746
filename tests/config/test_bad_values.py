"""Wrong values of a recipe: every command gives one sentence with the field, the value and the allowed values."""

import pytest

from tests.config.recipes import sentence, write

COUNT = "a whole number of 1 or more"
AMOUNT = "a whole number of 0 or more"
NOT_NEGATIVE = "a finite number of 0 or more"
MOST = ", and at most 2147483647"
PLUGIN = "a name, file.py:attribute or package.module:attribute, as a string"
JSON = "what JSON can hold"

# arguments of the Run -> the message
VALUES = {
    # wrong types
    "num_updates='ten'": f"num_updates is 'ten': it must be {COUNT}",
    "num_updates=None": f"num_updates is None: it must be {COUNT}",
    "num_updates=2.5": f"num_updates is 2.5: it must be {COUNT}",
    "num_updates=2.0": f"num_updates is 2.0: it must be {COUNT}",
    "num_updates=True": f"num_updates is True: it must be {COUNT}",
    "num_updates=[1]": f"num_updates is [1]: it must be {COUNT}",
    "num_updates=b'1'": f"num_updates is b'1': it must be {COUNT}",
    "num_updates=torch.tensor(1)": f"num_updates is tensor(1): it must be {COUNT}",
    "num_updates=numpy.array([1, 2])": f"num_updates is array([1, 2]): it must be {COUNT}",
    "num_updates=numpy.float64(1)": f"num_updates is np.float64(1.0): it must be {COUNT}",
    "num_updates=decimal.Decimal(1)": f"num_updates is Decimal('1'): it must be {COUNT}",
    "num_updates=1j": f"num_updates is 1j: it must be {COUNT}",
    "num_updates=lambda: 1": f"num_updates is a lambda: it must be {COUNT}",
    "num_updates=generator()": f"num_updates is a generator: it must be {COUNT}",
    "seed=print": "seed is the function print",
    "model=None": "model is None: it must be a Model, written as Model(...)",
    "model='m'": "model is 'm': it must be a Model, written as Model(...)",
    "model=Model": "model is the class Model, not called: it must be a Model",
    "model={'path': 'm'}": "model is {'path': 'm'}: it must be a Model",
    "model=Model(path=3)": "model.path is 3: it must be a path",
    "model=Model(path=None)": "model.path is None: it must be a path",
    "model=Model(path=b'm')": "model.path is b'm': it must be a path",
    "model=Model(path='')": "model.path is '': it must be a path",
    "model=Model(path='m\\0')": r"model.path is 'm\x00': it must be a path",
    "model=Model(path='m', init='radnom')": "model.init is 'radnom': it must be one of 'pretrained', 'random'",
    "model=Model(path='m', init=['random'])": "model.init is ['random']: it must be one of",
    "model=Model(path='m', dtype=torch.bfloat16)": "model.dtype is torch.bfloat16: it must be one of 'float32'",
    "parallel={'data': 2}": "parallel is {'data': 2}: it must be a Parallel, written as Parallel(...)",
    "parallel=Parallel(data='2')": f"parallel.data is '2': it must be {COUNT}",
    "parallel=Parallel(tensor=0)": f"parallel.tensor is 0: it must be {COUNT}",
    "parallel=Parallel(expert=2**70)": f"parallel.expert is {2**70}: it must be {COUNT}{MOST}",
    "parallel=Parallel(sequence=1)": "parallel.sequence is 1: it must be True or False",
    "parallel=Parallel(sequence='yes')": "parallel.sequence is 'yes': it must be True or False",
    "parallel=Parallel(sequence=numpy.bool_(True))": "parallel.sequence is np.True_: it must be True or False",
    "prompts='gsm8k'": "prompts is 'gsm8k': it must be a Prompts, written as Prompts(...)",
    "prompts=(PROMPTS,)": "prompts is (Prompts(source='arithmetic'",
    "prompts=Prompts(source=None)": f"prompts.source is None: it must be {PLUGIN}",
    "prompts=Prompts(source='a', options=[1])": "prompts.options is [1]: it must be a dict, {option: value}",
    "prompts=Prompts(source='a', options={1: 2})": "prompts.options has the key 1: a key must be a string",
    "prompts=Prompts(source='a', options={'x': math.nan})": f"prompts.options.x is nan: it must be {JSON}",
    "prompts=Prompts(source='a', options={'x': [0, {'y': {1}}]})": "prompts.options.x[1].y is {1}: it must be",
    "prompts=Prompts(source='a', options={'x': {1: 2}})": f"prompts.options.x is {{1: 2}}: it must be {JSON}",
    "prompts=Prompts(source='a', options={'x': print})": "prompts.options.x is the function print: it must be",
    "prompts=Prompts(source='a', options={'x': '\\ud800'})": r"prompts.options.x is '\ud800': it must be",
    "prompts=Prompts(source='a', options=LOOP)": "in at most 20 levels",
    "prompts=Prompts(source='a', max_tokens=-1)": f"prompts.max_tokens is -1: it must be {COUNT}",
    "prompts=Prompts(source='a', template=None)": "prompts.template is None: it must be a string",
    "prompts=Prompts(source='a', system='\\0')": r"prompts.system is '\x00': it must be a string without NUL",
    "prompts=Prompts(source='a', overlong='omit')": "prompts.overlong is 'omit': it must be one of 'error', 'drop'",
    "prompts=Prompts(source='a', without=['b'])": "prompts.without[0] is 'b': it must be a Prompts",
    "prompts=Prompts(source='a', without=PROMPTS)": "prompts.without is Prompts(",
    "prompts=Prompts(source='a', without=('b',))": "prompts.without[0] is 'b': it must be a Prompts",
    "prompts=Prompts(source='a', without=(Prompts(source=1),))": "prompts.without[0].source is 1: it must be a name",
    "rollouts=Sampling()": "rollouts is Sampling(",
    "rollouts=Rollouts(engine=None)": f"rollouts.engine is None: it must be {PLUGIN}",
    "rollouts=Rollouts(options=None)": "rollouts.options is None: it must be a dict",
    "rollouts=Rollouts(group_size=1)": "rollouts.group_size is 1: it must be at least 2",
    "rollouts=Rollouts(prompts_per_update=0)": f"rollouts.prompts_per_update is 0: it must be {COUNT}",
    "rollouts=Rollouts(max_staleness=-1)": f"rollouts.max_staleness is -1: it must be {AMOUNT}",
    "rollouts=Rollouts(refills=.5)": f"rollouts.refills is 0.5: it must be {AMOUNT}",
    "rollouts=Rollouts(oversampling=.5)": "rollouts.oversampling is 0.5: it must be a finite number of 1 or more",
    "rollouts=Rollouts(oversampling=math.nan)": "rollouts.oversampling is nan: it must be a finite number",
    "rollouts=Rollouts(overlong_penalty=-math.inf)": f"rollouts.overlong_penalty is -inf: it must be {NOT_NEGATIVE}",
    "rollouts=Rollouts(environment=None)": f"rollouts.environment is None: it must be {PLUGIN}",
    "rollouts=Rollouts(environment_options={'max_turns': 2})": "rollouts.environment is ''",
    "rollouts=Rollouts(endpoint=Endpoint(failure_reward=math.nan))": "endpoint.failure_reward is nan: it must be a",
    "rollouts=Rollouts(endpoint=Endpoint(failure_reward=torch.tensor(1.0)))": "failure_reward is tensor(1.): it must",
    "rollouts=Rollouts(sampling=None)": "rollouts.sampling is None: it must be a Sampling",
    "rollouts=Rollouts(sampling=Sampling(temperature=0))": "rollouts.sampling.temperature is 0.0: training needs",
    "rollouts=Rollouts(sampling=Sampling(temperature=1e-320))": "training needs sampled responses, so set it to 1e-06",
    "rollouts=Rollouts(sampling=Sampling(temperature=-0.1))": f"temperature is -0.1: it must be {NOT_NEGATIVE}",
    "rollouts=Rollouts(sampling=Sampling(temperature=math.inf))": "rollouts.sampling.temperature is inf: it must be",
    "rollouts=Rollouts(sampling=Sampling(temperature=torch.tensor(1.0)))": "temperature is tensor(1.): it must be",
    "rollouts=Rollouts(sampling=Sampling(top_p=0))": "rollouts.sampling.top_p is 0: it must be a number above 0",
    "rollouts=Rollouts(sampling=Sampling(top_p=1.5))": "rollouts.sampling.top_p is 1.5: it must be a number above 0",
    "rollouts=Rollouts(sampling=Sampling(max_tokens=0))": f"rollouts.sampling.max_tokens is 0: it must be {COUNT}",
    "rollouts=Rollouts(sampling=Sampling(stop={'</a>'}))": "rollouts.sampling.stop is {'</a>'}: it must be a tuple",
    "rollouts=Rollouts(sampling=Sampling(stop=[1]))": "rollouts.sampling.stop[0] is 1: it must be a string",
    "rollouts=Rollouts(sampling=Sampling(stop=''))": "rollouts.sampling.stop is '': it must be a tuple",
    "rollouts=Rollouts(sampling=Sampling(stop=('',)))": "rollouts.sampling.stop[0] is '': it must be a string",
    "rollouts=Rollouts(sampling=Sampling(stop=(1,)))": "rollouts.sampling.stop[0] is 1: it must be a string",
    "reward=lambda prompts, responses: 0": f"reward is a lambda: it must be {PLUGIN}",
    "reward=print": f"reward is the function print: it must be {PLUGIN}",
    "reward=''": f"reward is '': it must be {PLUGIN}",
    "reward_options={'exact'}": "reward_options is {'exact'}: it must be a dict",
    "advantage=group_relative": "advantage is the function group_relative, not called: it must be",
    "objective='sspo'": "objective is 'sspo': it must be an objective, such as sspo()",
    "objective=sspo": "objective is the function sspo, not called: it must be an objective, such as sspo()",
    "objective=grpo": "objective is the function grpo, not called: it must be an objective",
    "objective=None": "objective is None: it must be an objective",
    "objective=AtanLog()": "objective is AtanLog(tau_neg=0.3, tau_pos=0.2): it must be an objective",
    "objective=SequenceObjective": "objective is the class SequenceObjective, not called: it must be an objective",
    "objective=SequenceObjective(AtanLog(), grpo)": "an objective that takes log_probs, old_log_probs",
    "objective=lambda a, b, c, d: None": "objective is a lambda: it must be an objective that returns Sums",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), loss=torch.ones(()))": "an objective whose loss has "
    "a finite gradient with respect to log_probs, also where they are old_log_probs; on three tokens it has none",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), loss=(a - b).abs().sqrt().sum())": "finite gradient with "
    "respect to log_probs, also where they are old_log_probs; on three tokens it is [nan",
    "objective=OWN": "objective is the function OWN: it must be an objective that returns Sums, whose loss is a finite",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), tokens={'w': torch.ones(())})": "a dict of tensors as "
    "tokens, each with one number for each of the tokens; 'w' has the shape () for 3 tokens",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), sequences={'s': 1.0})": "of the sequences; 's' is 1.0",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), tokens=None)": "each of the tokens; it is None",
    "objective=lambda a, b: None": "be called with log_probs, old_log_probs, advantages, segments, but too many",
    "objective=NEEDY": "objective is the function NEEDY: it must be an objective whose needs can be given, but "
    "function needs 'q', and there are rollout_log_probs",
    "objective=lambda a, b, c, d: (s := sspo()(a, b, c, d), b.zero_(), c.zero_())[0]": "on three tokens it raised "
    "ValueError: the objective changes old_log_probs in place: use functions that return a new tensor",
    "objective=lambda a, b, c, d: sspo()(a, b, c.zero_(), d)": "the objective changes advantages in place",
    "objective=lambda a, b, c, d: sspo()(a, b, c, d) if c.any() else Sums(loss=torch.zeros(()))": "on three tokens "
    "without advantage it has none, because the loss is detached or computed from numbers: use every log-prob, if only",
    "objective=lambda a, b, c, d: replace(sspo()(a, b, c, d), loss=a.mean())": "on a microbatch without sequences, "
    "as a rank may have one, it is nan",
    "objective=lambda a, b, c, d: sspo()(a, b, c, d) if len(a) else Sums(loss=a.sum())": "reports values of the same "
    "names; on a microbatch without sequences, as a rank may have one, it reports none, and otherwise log_ratio, ",
    "objective=replace(sspo(), average=DividedBy(None))": "has a finite number above 0 as its divisor, not None",
    "objective=replace(sspo(), average=DividedBy('3'))": "has a finite number above 0 as its divisor, not '3'",
    "objective=replace(sspo(), average=DividedBy(torch.tensor([2.0, 3.0])))": "as its divisor, not tensor([2., 3.])",
    "objective=replace(sspo(), average=DividedBy(math.inf))": "has a finite number above 0 as its divisor, not inf",
    "objective=replace(sspo(), average=DividedBy(1.0, torch.ones(2, 1)))": "share returned shape [2, 1], and must",
    "objective=Averaging(DividedBy(1.0, torch.ones(2, 1)))": "ValueError: DividedBy.share returned shape [2, 1], and",
    "objective=Averaging(DividedBy(0))": "has a finite number above 0 as its divisor, not 0",
    "objective=lambda a, b, c, d: (__import__('os').chdir('/'), sspo()(a, b, c, d))[1]": "the objective has changed "
    "the working folder from ",
    "objective=lambda a, b, c, d: 1 / 0": "on three tokens it raised ZeroDivisionError: division by zero",
    "penalties=None": "penalties is None: it must be a Penalties",
    "penalties=Correction()": "penalties is Correction(",
    "correction='none'": "correction is 'none': it must be a Correction",
    "updates_per_sync=0": f"updates_per_sync is 0: it must be {COUNT}",
    "tokens_per_microbatch=2**31": f"tokens_per_microbatch is 2147483648: it must be {COUNT}{MOST}",
    "tokens_per_microbatch=10**5000": "tokens_per_microbatch is an integer of 16610 bits",
    "routing_replay='R4'": "routing_replay is 'R4': it must be one of 'none', 'R2', 'R3'",
    "routing_replay=None": "routing_replay is None: it must be one of 'none', 'R2', 'R3'",
    "optimizer=Optimizer": "optimizer is the class Optimizer, not called: it must be an Optimizer",
    "optimizer=Optimizer(lr=math.nan)": f"optimizer.lr is nan: it must be {NOT_NEGATIVE}",
    "optimizer=Optimizer(lr='1e-6')": f"optimizer.lr is '1e-6': it must be {NOT_NEGATIVE}",
    "optimizer=Optimizer(lr=2**70)": f"optimizer.lr is {2**70}: it must be {NOT_NEGATIVE}{MOST}",
    "optimizer=Optimizer(lr=10**5000)": "optimizer.lr is an integer of 16610 bits",
    "optimizer=Optimizer(lr=True)": f"optimizer.lr is True: it must be {NOT_NEGATIVE}",
    "optimizer=Optimizer(lr=1e-6, min_lr=1e-5)": "optimizer.min_lr is 1e-05, more than optimizer.lr=1e-06",
    "optimizer=Optimizer(schedule='cosin')": "optimizer.schedule is 'cosin': it must be one of 'constant', 'linear'",
    "optimizer=Optimizer(warmup_updates=-1)": f"optimizer.warmup_updates is -1: it must be {AMOUNT}",
    "optimizer=Optimizer(weight_decay=-5)": f"optimizer.weight_decay is -5: it must be {NOT_NEGATIVE}",
    "optimizer=Optimizer(beta1=2.0)": "optimizer.beta1 is 2.0: it must be a number of 0 or more and below 1",
    "optimizer=Optimizer(beta2=1)": "optimizer.beta2 is 1: it must be a number of 0 or more and below 1",
    "optimizer=Optimizer(eps=-1)": "optimizer.eps is -1: it must be a finite number above 0",
    "optimizer=Optimizer(clip_grad=math.inf)": f"optimizer.clip_grad is inf: it must be {NOT_NEGATIVE}",
    "warm_start=3": "warm_start is 3: it must be a WarmStart, written as WarmStart(...) or None",
    "warm_start=warm_start(updates='x')": f"warm_start.updates is 'x': it must be {COUNT}",
    "warm_start=warm_start(prompts=replace(PROMPTS, max_tokens=2))": "warm_start: the prompt of arithmetic",
    "warm_start=warm_start(prompts=None)": "warm_start.prompts is None: it must be a Prompts",
    "warm_start=warm_start(optimizer=Optimizer(lr=math.nan))": "warm_start.optimizer.lr is nan",
    "warm_start=warm_start(optimizer=Optimizer(lr=0, min_lr=1))": "warm_start.optimizer.min_lr is 1.0, more than",
    "warm_start=warm_start(), penalties=Penalties(kl_coef=.1)": "penalties.kl_coef is 0.1 in a run with a warm start",
    "evaluation={'a': PROMPTS}": "evaluation is {'a': Prompts(",
    "evaluation=Evaluation(sets=[1, 2])": "evaluation.sets is [1, 2]: it must be a dict of one set or more",
    "evaluation=Evaluation(sets={})": "evaluation.sets is {}: it must be a dict of one set or more",
    "evaluation=Evaluation(sets={'a': PROMPTS})": "evaluation.sets.a is Prompts(",
    "evaluation=Evaluation(sets={1: HeldOut(prompts=PROMPTS)})": "evaluation.sets has the key 1: a key must be",
    "evaluation=held_out(name='a/b')": "evaluation.sets has the key 'a/b': a key must be a name",
    "evaluation=held_out(name='')": "evaluation.sets has the key '': a key must be a name",
    "evaluation=held_out(max_tokens=-1)": f"evaluation.sets.a.max_tokens is -1: it must be {AMOUNT}",
    "evaluation=held_out(title=3)": "evaluation.sets.a.title is 3: it must be a string of one line",
    "evaluation=held_out(title='a\\nb')": r"evaluation.sets.a.title is 'a\nb': it must be a string of one line",
    "evaluation=held_out(reward=print)": "evaluation.sets.a.reward is the function print: it must be a name",
    "evaluation=held_out(environment=3)": "evaluation.sets.a.environment is 3: it must be a name",
    "evaluation=held_out(environment_options={'max_turns': 2})": "evaluation.sets.a.environment_options is",
    "evaluation=held_out(environment='', environment_options={'max_turns': 2})": "the set has no environment: name the",
    "evaluation=held_out(Prompts(source='a', system=3))": "evaluation.sets.a.prompts.system is 3: it must be",
    "evaluation=replace(held_out(), every=1.5)": f"evaluation.every is 1.5: it must be {AMOUNT}",
    "evaluation=replace(held_out(), samples=None)": f"evaluation.samples is None: it must be {AMOUNT}",
    "tracking='wandb'": "tracking is 'wandb': it must be a Tracking",
    "tracking=Tracking(tensorboard='no')": "tracking.tensorboard is 'no': it must be True or False",
    "tracking=Tracking(wandb_project=None)": "tracking.wandb_project is None: it must be a string",
    "checkpoint_every=-1": f"checkpoint_every is -1: it must be {AMOUNT}",
    "checkpoints_kept=0": f"checkpoints_kept is 0: it must be {COUNT}",
    "check_memory=None": "check_memory is None: it must be True or False",
    "distributed_timeout=math.nan": "distributed_timeout is nan: it must be a finite number of 5 or more, in seconds",
    "distributed_timeout=1e-9": "distributed_timeout is 1e-09: it must be a finite number of 5 or more, in seconds",
    "megatron=None": "megatron is None: it must be a dict, {field: value}",
    "megatron={1: 2}": "megatron has the key 1: a key must be a string",
    "ddp='x'": "ddp is 'x': it must be a dict, {field: value}",
    "reward_options={'x': 2**63}": "reward_options.x is 9223372036854775808: it must be what JSON can hold",
    "reward_options={'x': [-(10**5000)]}": "reward_options.x[0] is an integer of 16610 bits: it must be what JSON",
    # fields of a derived class that nothing would read
    "rollouts=Rollouts(sampling=WithTopK())": "rollouts.sampling is of the class WithTopK with the field top_k, which",
    "evaluation=held_out(replace(PROMPTS, without=(Weighted(source='a'),)))": (
        "evaluation.sets.a.prompts.without[0] is of the class Weighted with the field weight, which nothing reads"
    ),
    # contradictions
    "parallel=Parallel(virtual_pipeline=2)": "parallel.virtual_pipeline is 2 with parallel.pipeline=1",
    "parallel=Parallel(sequence=True)": "parallel.sequence is on with parallel.tensor=1",
    "parallel=Parallel(expert=2)": "does not divide data × tensor × context = 1",
    "rollouts=Rollouts(max_staleness=1)": "rollouts.max_staleness is 1 and updates_per_sync 2",
    "rollouts=Rollouts(overlong_buffer=513)": "rollouts.overlong_buffer is 513, more than",
    "rollouts=Rollouts(environment='codeact')": "set prompts.template to 'chat'",
    "rollouts=Rollouts(agent_options={'a': 2})": "rollouts.agent is '': name the agent",
    "rollouts=Rollouts(agent='a:B', environment='c'), prompts=Prompts(source='a')": "driven by one of them",
    "rollouts=Rollouts(agent='a:B', overlong_buffer=5)": "set it to 0 and let the agent's reward punish length",
    "rollouts=Rollouts(agent='a:B'), penalties=Penalties(entropy_coef=.1)": "penalties are sums over sequences",
    "rollouts=Rollouts(agent='a:B'), objective=dapo()": "only a mean over sequences counts an episode",
    "tokens_per_microbatch=100": "a sequence may have 528 tokens",
}

# names of runs that cannot be the name of a folder
NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "/a",
    "a\0b",
    "a\nb",
    "a\n",
    " a",
    "a ",
    "a\tb",
    "\ud800",
    ".a",
    "-a",
    "x" * 300,
    "ä" * 101,
]


@pytest.mark.parametrize(("fields", "message"), VALUES.items(), ids=VALUES)
def test_a_wrong_value_is_named_with_its_field_and_its_remedy(tmp_path, capsys, fields, message) -> None:
    assert message in sentence(write(tmp_path, fields), capsys)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_no_folder_has(tmp_path, capsys, name) -> None:
    found = sentence(write(tmp_path, f"name={name!a}"), capsys)
    assert found.startswith(f"name is {ascii(name)[:20].rstrip(chr(39))}" if name.isascii() else "name is '")
    assert "it must be the plain name of a folder" in found


@pytest.mark.parametrize("value", ["None", "3", "b'a'", "Path('a')", "['a']", "print"])
def test_a_name_that_is_no_string(tmp_path, capsys, value) -> None:
    assert "it must be the plain name of a folder" in sentence(write(tmp_path, f"name={value}"), capsys)
