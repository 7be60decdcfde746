"""A second model in the policy's layout, which computes log-probs and is not trained."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from megatron_sspo.memory.parameters import padded_vocab_size
from megatron_sspo.policy.model import transformer_config
from megatron_sspo.policy.optimizer import in_bfloat16
from megatron_sspo.policy.schedule import RankBatch
from megatron_sspo.policy.weights import check_shards, load_folder
from megatron_sspo.run import Run
from megatron_sspo.weights.family import Family, load_family

if TYPE_CHECKING:
    from megatron_sspo.policy.policy import Makers


def teacher_config(run: Run, family: Family, config: Mapping[str, Any]) -> TransformerConfig:
    """Returns the teacher's TransformerConfig, in the run's layout; the fields of `run.megatron` are the policy's."""
    parallel = run.parallel
    if not family.transformer_fields(config).get("num_moe_experts"):
        parallel = replace(parallel, expert=1, expert_tensor=1)
    return transformer_config(family, config, parallel, getattr(torch, run.model.dtype), {})


class TeacherModel:
    """The model of `Run.teacher`; between passes its weights are in the host's memory. Building one is a collective."""

    def __init__(self, run: Run, path: Path, makers: "Makers", *, share_prompts: bool) -> None:
        self._top_k = run.teacher.top_k if run.teacher else 0
        self.folder = makers.open_folder(path)
        config = self.folder.config
        family = load_family(config, self.folder.config_folder)
        transformer = teacher_config(run, family, config)
        vocab_size = int(config["vocab_size"])
        rows = family.rows(config, padded_vocab_size(vocab_size, run.parallel.tensor))
        check_shards(rows, run.parallel)
        self.chunks = makers.build_chunks(family, config, transformer, share_prompts=share_prompts)
        load_folder(self.chunks, rows, self.folder)
        if transformer.bf16:
            self.chunks = [in_bfloat16(transformer, chunk) for chunk in self.chunks]
        self._parameters = [parameter for chunk in self.chunks for parameter in chunk.parameters()]
        self._on_host = [parameter.data.cpu() for parameter in self._parameters]
        self._device = self._parameters[0].device
        self._place(lambda host: host)
        self._schedule = makers.make_schedule(
            run, transformer, self.chunks, vocab_size, None, None, share_prompts=share_prompts
        )

    @torch.no_grad()
    def log_probs(self, rank_batch: RankBatch) -> dict[str, dict[int, np.ndarray]]:
        """Returns the teacher's fields of the rollouts that this rank holds, by their indices. A collective."""
        names = ["log_probs", *(["top_log_probs", "top_tokens"] if self._top_k else [])]
        with self._on_device():
            values = self._schedule.token_values(rank_batch, names, top_k=self._top_k)
        return {f"teacher_{name}": found for name, found in zip(names, values, strict=True)}

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        self._place(lambda host: host.to(self._device))
        try:
            yield
        finally:
            self._place(lambda host: host)

    def _place(self, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        for parameter, host in zip(self._parameters, self._on_host, strict=True):
            parameter.data = of(host)
