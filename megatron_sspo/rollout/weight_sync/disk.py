"""Weight sync through a folder that the trainer and the servers both see: slow, and without other requirements."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from megatron_sspo.rollout.weight_sync.session import NamedTensor, Observe, SyncSession, Transport, at_rank_0
from megatron_sspo.weights.formats.hf_folder import write_folder
from megatron_sspo.weights.formats.model_folder import ModelFolder
from megatron_sspo.weights.fp8 import trained_config


class DiskTransport(Transport):
    """Writes a Hugging Face folder per sync, lets the servers load its weights, and removes it.

    Args:
        folder: the parent of these folders.
        model_path: the folder with config.json and tokenizer.
        also: further fields of config.json.
    """

    def __init__(self, folder: Path, model_path: Path, also: Mapping[str, Any] | None = None) -> None:
        self._folder = folder.resolve()
        self._source = ModelFolder()
        self._source.config_folder = model_path
        self._source.config = {**trained_config(model_path), **(also or {})}

    def send(
        self, session: SyncSession, tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Replaces all weights of the session's servers."""

        def counted() -> Iterable[NamedTensor]:
            for name, tensor in at_rank_0(tensors, observe):
                session.num_bytes += tensor.nbytes
                yield name, tensor.detach().cpu().clone()

        for left in self._folder.glob("weights-*"):  # by a killed trainer; no other one uses the run's folder
            shutil.rmtree(left, ignore_errors=True)
        path = self._folder / f"weights-{version}"
        write_folder(path, counted(), source=self._source)
        content = {
            "model_path": str(path),
            "load_format": "safetensors",  # the servers were started without reading any weights
            "weight_version": version,
            "flush_cache": False,
        }
        session.post("/update_weights_from_disk", content)
        shutil.rmtree(path)
