"""Checks a run's Megatron configuration before any process is started."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.memory.parameters import padded_vocab_size
from megatron_sspo.policy.model import transformer_config
from megatron_sspo.policy.optimizer import ddp_config
from megatron_sspo.policy.shared_prompts.rules import shares_prompts
from megatron_sspo.policy.teacher import teacher_config
from megatron_sspo.policy.weights import check_shards
from megatron_sspo.run import Parallel, Run
from megatron_sspo.weights.family import Family, load_family
from megatron_sspo.weights.formats.open_folder import read_config_of

# in Megatron's errors about fields that need a newer Transformer Engine than this machine has
_TE_REQUIRED = re.compile(r"\bTE\b|transformer[- ]engine", re.IGNORECASE)


def check_policy(run: Run, config: Mapping[str, Any], *, for_other_machines: bool = False) -> None:
    """Builds the policy's configuration objects without a model or process groups, and discards them.

    Args:
        for_other_machines: whether other machines run it, which may have a Transformer Engine that this one lacks.

    Raises:
        UserError: a field of `run.megatron` or `run.ddp` is wrong, the layout does not fit the model or the
            teacher, or prompts cannot be shared.
    """
    ddp_config(run.ddp, run.parallel)
    family = load_family(config, Path(run.model.path))
    dtype, replay = getattr(torch, run.model.dtype), run.routing_replay != "none"
    try:
        transformer = transformer_config(family, config, run.parallel, dtype, run.megatron, routing_replay=replay)
        shares_prompts(run.share_prompts, transformer)
    except UserError as error:
        if not (for_other_machines and _TE_REQUIRED.search(str(error))):
            raise
    _check_rows(family, config, run.parallel)
    if run.held_teacher:
        try:
            taught_by = read_config_of(Path(run.held_teacher))
            family = load_family(taught_by, Path(run.held_teacher))
            shares_prompts(run.share_prompts, teacher_config(run, family, taught_by))
            _check_rows(family, taught_by, run.parallel)
        except UserError as error:
            raise UserError(f"teacher.path does not fit: {error}") from error


def _check_rows(family: Family, config: Mapping[str, Any], parallel: Parallel) -> None:
    check_shards(family.rows(config, padded_vocab_size(int(config["vocab_size"]), parallel.tensor)), parallel)
