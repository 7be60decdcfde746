"""Writes a randomly initialized model as a Hugging Face folder."""

import json
from pathlib import Path

from megatron_sspo.files.reading import read_json
from megatron_sspo.files.writing import safetensors_errors_as_user_errors
from megatron_sspo.weights.formats.companions import copy_tokenizer_files
from megatron_sspo.weights.formats.destination import new_folder

INITIAL_MODEL = "initial_model"  # the folder of these weights in a run's folder


def write_random_weights(model_path: Path, destination: Path, seed: int) -> None:
    """Writes the model of `model_path/config.json` with Transformers' own random initialization.

    The policy then loads it like any other model, so that the first weights do not depend on the layout. An existing
    `destination` is kept, because it was written with the same seed. Raises UserError if nothing can be written.
    """
    if destination.exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(str(model_path), local_files_only=True)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with safetensors_errors_as_user_errors(destination), new_folder(destination) as folder:
        model.save_pretrained(folder)
        copy_tokenizer_files(model_path, folder)
        # the user's own config.json, because Transformers adds fields of its own version
        config_text = json.dumps(read_json(model_path / "config.json"), indent=2)
        (folder / "config.json").write_text(config_text, encoding="utf-8")
