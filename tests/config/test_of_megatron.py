"""Fields of Megatron's dataclasses, plug-ins and the model's folder: every command reports the same before a start."""

import json
import re
import shutil

import pytest

from megatron_sspo.recipe import load_recipe
from tests.config.recipes import MODEL, sentence, write

REFUSED = {
    "megatron={'hidden_dropuot': .1}": "did you mean hidden_dropout?",
    "megatron={'num_layers': 0}": "megatron.num_layers is 0, which a recipe cannot set: ",
    "megatron={'calculate_per_token_loss': True}": "per_token_loss is True, which a recipe cannot set: ",
    "megatron={'fp8_margin': 2.5}": "megatron.fp8_margin is 2.5: Megatron wants int",
    "megatron={'recompute_granularity': 'full'}": "Megatron refuses the configuration megatron=",
    "ddp={'overlap_gard_reduce': True}": "did you mean overlap_grad_reduce?",
    # layouts that do not fit the model
    "parallel=Parallel(data=3, expert=3)": "parallel.expert is 3, which does not divide the model's 8 experts",
    "parallel=Parallel(tensor=2)": "experts under parallel.tensor > 1 need parallel.sequence=true",
    # plug-ins
    "reward_options={'exact': 1}": "the option exact is 1: it must be a valid boolean",
    "rollouts=Rollouts(options={'max_batch_size': 0})": "the option max_batch_size is 0: it must be greater than or",
    "rollouts=Rollouts(max_staleness=2)": "rollouts.max_staleness is 2, and the engine 'embedded' generates inside",
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
    ],
)
def test_a_plug_in_that_cannot_be_loaded(tmp_path, capsys, plugin, message) -> None:
    (tmp_path / "plugin.py").write_text(plugin + "\n")
    assert message in sentence(write(tmp_path, f"reward='{tmp_path}/plugin.py:reward'"), capsys)


@pytest.mark.parametrize(
    ("name", "edit", "fields", "message"),
    [
        ("config.json", {"vocab_size": 12}, "", "has the token .*, and the model's vocabulary 12 tokens"),
        ("config.json", {"max_position_embeddings": 4}, "", "and the model 4 positions .* no room for a response"),
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
