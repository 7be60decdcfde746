"""Fields of Megatron's dataclasses, plug-ins and the model's folder: every command reports the same before a start."""

import json
import re
import shutil

import pytest

from megatron_sspo.recipe import load_recipe
from tests.config.recipes import MODEL, sentence, write

MINE_NOT = "which a recipe cannot set"
MINE = f"{MINE_NOT}: it comes from"

REFUSED = {
    "megatron={'hidden_dropuot': .1}": "megatron.hidden_dropuot is not a field of this megatron-core's "
    "TransformerConfig: did you mean hidden_dropout?",
    "megatron={'num_layers': 0}": f"megatron.num_layers is 0, {MINE} the model's config.json, so leave it out",
    "megatron={'num_attention_heads': 3}": f"megatron.num_attention_heads is 3, {MINE} the model's config.json",
    "megatron={'tensor_model_parallel_size': 2}": f"is 2, {MINE} parallel.tensor, so set that",
    "megatron={'bf16': False}": f"megatron.bf16 is False, {MINE} model.dtype, so set that",
    "megatron={'calculate_per_token_loss': True}": f"is True, {MINE_NOT}: it weights every sequence by its length",
    "megatron={'hidden_dropout': 0.1}": f"megatron.hidden_dropout is 0.1, {MINE_NOT}: it draws anew in every",
    "megatron={'window_size': [1, 2]}": f"megatron.window_size is [1, 2], {MINE_NOT}: it makes another model than",
    "megatron={'layernorm_epsilon': 1e-5}": f"megatron.layernorm_epsilon is 1e-05, {MINE} the model's config.json",
    "megatron={'moe_router_load_balancing_type': 'seq_aux_loss', 'moe_aux_loss_coeff': 0.1}": "['seq_aux_loss'] and",
    "megatron={'moe_aux_loss_coeff': 0.01}": "type is ['none'] and megatron.moe_aux_loss_coeff is [0.01]: a loss has",
    "megatron={'moe_router_load_balancing_type': 'aux_loss'}": "and megatron.moe_aux_loss_coeff is [0.0]",
    "megatron={'fp8_margin': 2.0}": "megatron.fp8_margin is 2.0: Megatron wants int",
    "megatron={'recompute_granularity': 'everything'}": "is 'everything': Megatron wants Optional[Literal['full', 'sel",
    "megatron={'recompute_granularity': 'full'}": "Megatron refuses the configuration megatron={'rec",
    "megatron={'cp_comm_type': 'a2a+p2p'}": "megatron.cp_comm_type is 'a2a+p2p': choose p2p, a2a or all_gather",
    "ddp={'overlap_gard_reduce': True}": "did you mean overlap_grad_reduce?",
    "ddp={'use_megatron_fsdp': True}": f"ddp.use_megatron_fsdp is True, {MINE_NOT}: it shards parameters",
    "ddp={'overlap_param_gather': True}": "ddp.overlap_param_gather needs ddp.use_distributed_optimizer",
    "megatron={'fp8': 'hybrid'}": f"megatron.fp8 is 'hybrid', {MINE_NOT}: rows of microbatches have any length",
    # layouts that do not fit the model
    "parallel=Parallel(data=3, expert=3)": "parallel.expert is 3, which does not divide the model's 8 experts",
    "parallel=Parallel(tensor=2)": "experts under parallel.tensor > 1 need parallel.sequence=true",
    # plug-ins
    "model=Model(path='/nowhere')": "/nowhere has no config.json: set model.path to a Hugging Face folder",
    "reward='nobody'": "there is no reward named 'nobody'",
    "reward_options={'exakt': True}": "has no option exakt",
    "reward_options={'exact': 1}": "the option exact is 1: it must be a valid boolean",
    "rollouts=Rollouts(options={'max_batch_size': 0})": "the option max_batch_size is 0: it must be greater than or",
    "rollouts=Rollouts(max_staleness=2)": "rollouts.max_staleness is 2, and the engine 'embedded' generates inside",
    "routing_replay='R3'": "and the engine 'embedded' reports no routes",
    "advantage='math:isfinite'": "the advantage 'math:isfinite' cannot be computed",
    "prompts=Prompts(source='arithmetic', options={'size': 8}, template='no question')": "template",
    "warm_start=warm_start(prompts=replace(PROMPTS, max_tokens=2))": "warm_start: the prompt of arithmetic",
}

TAKEN = [
    "megatron={'cp_comm_type': ['p2p'], 'qk_clip_alpha': 0.5, 'attention_backend': 'flash'}",
    "parallel=Parallel(pipeline=2), megatron={'num_layers_in_first_pipeline_stage': 1}",
    "megatron={'moe_router_load_balancing_type': ['aux_loss'], 'moe_aux_loss_coeff': [0.1]}",
    "ddp={'bucket_size': None, 'overlap_grad_reduce': True, 'use_megatron_fsdp': False}",
]


@pytest.mark.parametrize(("fields", "message"), REFUSED.items(), ids=REFUSED)
def test_every_command_finds_the_same(tmp_path, capsys, fields, message) -> None:
    assert message in sentence(write(tmp_path, fields), capsys)


@pytest.mark.parametrize("fields", TAKEN)
def test_what_megatron_takes_is_taken(tmp_path, monkeypatch, fields) -> None:
    from megatron_sspo.preflight.preflight import preflight

    for kind in ("FLASH", "FUSED", "UNFUSED"):  # Megatron has set them if a test of this process has built a model
        monkeypatch.delenv(f"NVTE_{kind}_ATTN", raising=False)
    preflight(load_recipe(str(write(tmp_path, fields)), [f"output={tmp_path / 'runs'}"]), resume=None)


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("1 / 0", "plugin.py, line 1 (`1 / 0`): ZeroDivisionError: division by zero"),
        ("def reward(:", "plugin.py, line 1 is not Python: invalid syntax"),
        ("x = 1", "has no attribute 'reward'"),
        ("reward = 3", "is 3, and must be a function"),
        ("def reward(size): ...", "needs the option size"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded(tmp_path, capsys, plugin, message) -> None:
    (tmp_path / "plugin.py").write_text(plugin + "\n")
    assert message in sentence(write(tmp_path, f"reward='{tmp_path}/plugin.py:reward'"), capsys)


@pytest.mark.parametrize(
    ("name", "edit", "fields", "message"),
    [
        ("config.json", {"vocab_size": 12}, "", "has the token .*, and the model's vocabulary 12 tokens"),
        (
            "config.json",
            {"max_position_embeddings": 4},
            "",
            "tokens and the model 4 positions .* no room for a response",
        ),
        (
            "tokenizer_config.json",
            {"eos_token": None},
            "warm_start=warm_start()",
            "has no eos_token, with which a demonstration ends",
        ),
    ],
)
def test_a_tokenizer_that_does_not_fit_the_model(tmp_path, capsys, name, edit, fields, message) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
    found = sentence(write(tmp_path, f"model=Model(path={str(tmp_path / 'model')!r}, init='random'), {fields}"), capsys)
    assert re.search(message, found), found
