"""Writes the files that a run needs: a very small model, and prompts with tests."""

import json
from pathlib import Path

from tools.torture.life import ROOT
from tools.torture.plugins import TESTS

_SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
}
_NUM_PROMPTS = 20  # fewer than a run uses, so that the stream begins new epochs


def write(folder: Path) -> None:
    """Makes the folder `TORTURE_FOLDER` with the model and the prompts."""
    model = folder / "model"
    model.mkdir(parents=True)
    for file in (ROOT / "examples" / "tiny_moe").iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | _SMALL), encoding="utf-8")
    rows = [{"question": f"{n}+{n}=", "answer": str(2 * n), "tests": TESTS} for n in range(_NUM_PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
