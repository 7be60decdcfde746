"""Runs the checks of all ranks, first with equal ranks and then with a rank that differs from the others.

ranks.py FOLDER     (FOLDER/other has the metadata of another version of a package)
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from megatron_sspo.data.row import Row
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.preflight.ranks import check_ranks, check_same_prompts
from megatron_sspo.run import Model, Optimizer, Parallel, Prompts, Run
from tests.policy.launcher import join
from tests.weights.test_families import QWEN3_30B_A3B


def main(folder: Path) -> None:
    join()
    rank = dist.get_rank()
    run = Run(
        name="run",
        model=Model(path=str(folder / "model"), dtype="float32"),
        prompts=Prompts(source=""),
        num_updates=1,
        parallel=Parallel(data=2),
    )
    tiny = json.loads((folder / "model" / "config.json").read_text())
    found = {"as it should be": said(run, tiny, folder / "run")}
    assert list((folder / "run").iterdir()) == []

    for name, numbers, demonstration in (
        ("same prompts", "12", "1"),
        ("prompts", f"1{2 + rank}", "1"),
        ("demonstrations", "12", f"{rank}"),
    ):
        rows = [Row(id=number, question=number, answer="1", demonstration=demonstration) for number in numbers]
        stream = PromptStream(rows, tokenize, template="{question}", max_tokens=9, seed=0)
        found[name] = said_of(partial(check_same_prompts, {"evaluation.sets.a.prompts": stream}))
    found["values"] = said(replace(run, optimizer=Optimizer(lr=0.1 * rank)), tiny, folder / "run")
    found["memory"] = said(replace(run, tokens_per_microbatch=10**6), QWEN3_30B_A3B, folder / "large")

    here = folder / f"rank{rank}"
    here.mkdir()
    os.chdir(here)
    found["paths"] = said(run, tiny, Path("runs") / "relative")

    if rank == 1:
        sys.path.insert(0, str(folder / "other"))
    found["versions"] = said(run, tiny, folder / "versions")
    (folder / f"found{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def tokenize(texts: list[str], **options: object) -> dict[str, list[list[int]]]:
    """Stands for a tokenizer."""
    return {"input_ids": [list(text.encode()) for text in texts]}


def said(run: Run, config: dict, folder: Path) -> str:
    return said_of(partial(check_ranks, run, config, folder))


def said_of(check: Callable[[], None]) -> str:
    """Returns the error's message; "" if the check passes."""
    with contextlib.suppress(SystemExit):
        try:
            check()
        except UserError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
