"""Measures small syncs of a run's weights: how many elements change, and bytes and seconds beside those of full syncs.

    megatron-sspo train examples/study/recipes.py:warm_sums --set name=warm
    python benchmarks/delta_sync.py examples/study/recipes.py:sums --set model.path=runs/warm/model \\
        --set model.init=pretrained --rates 1e-5 1e-4 1e-3
    python benchmarks/delta_sync.py examples/study/recipes.py:pretrained_sums --rates 1e-6 5e-6

For each learning rate, the recipe is run in one process for some syncs, and its weights are kept. They are sent again,
in float32 and rounded to bfloat16, to a real server on this machine's CPU, once as changes and once whole. A row has
the share of elements that change from one sync to the next, and the bytes and seconds of a sync, all medians. The
checksums of all tensors are compared at the first sync and at the last, which do not count.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from megatron_sspo.recipe import load_recipe
from megatron_sspo.rollout.engines import embedded, sglang
from megatron_sspo.rollout.weight_sync.delta import changes_of

FOLDER = "SYNC_FOLDER"  # the environment variable of the folder for the weights of a run
Weights = dict[str, torch.Tensor]


class Recorder(embedded.EmbeddedEngine):
    """The embedded engine, which also writes the weights of each sync into a file."""

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """Loads the weights, and writes them."""
        kept = {name: tensor.detach().cpu().clone() for name, tensor in tensors}
        save_file(kept, Path(os.environ[FOLDER]) / f"{policy_version:05d}.safetensors")
        super().load_weights(iter(kept.items()), policy_version)


def engine(model_path: Path, **options: Any) -> Recorder:
    """Builds the engine of the runs."""
    made = embedded.engine(model_path, **options)
    made.__class__ = Recorder
    assert isinstance(made, Recorder)
    return made


def record(recipe: str, assignments: Sequence[str], num_syncs: int, folder: Path) -> list[Path]:
    """Runs the recipe, and returns the files with the weights of its syncs."""
    folder.mkdir()
    own = ["evaluation=None", "checkpoint_every=0", f"output={folder}", f"rollouts.engine={__file__}:engine"]
    given = [*assignments, *own]
    given.append(f"num_updates={load_recipe(recipe, given).updates_per_sync * num_syncs}")
    subprocess.run(
        [sys.executable, "-m", "megatron_sspo", "train", recipe, *(f"--set={value}" for value in given)],
        env={**os.environ, FOLDER: str(folder)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return sorted(folder.glob("*.safetensors"))


def read(file: Path, dtype: torch.dtype) -> Weights:
    """Returns weights, rounded to a dtype."""
    return {name: tensor.to(dtype) for name, tensor in load_file(file).items()}


def shares_of_changes(files: Sequence[Path], dtype: torch.dtype) -> list[float]:
    """Returns the shares of the elements that change from each sync to the next."""
    last, found = read(files[0], dtype), []
    for file in files[1:]:
        num_changed = sum(len(change.bits) for change in changes_of(read(file, dtype).items(), last))
        found.append(num_changed / sum(tensor.numel() for tensor in last.values()))
    return found


def send(folder: Path, files: Sequence[Path], dtype: torch.dtype, **options: Any) -> tuple[float, ...]:
    """Sends the weights of all syncs. Returns the median gigabytes and seconds of one, without the first and last."""
    sender = sglang.engine(folder, **options, verify_every=len(files) - 1)
    found = []
    try:
        for version, file in enumerate(files):
            sender.load_weights(iter(read(file, dtype).items()), version)
            found.append(sender.metrics())
    finally:
        sender.close()
    return tuple(
        statistics.median(metrics[name] for metrics in found[1:-1]) for name in ("sync/gigabytes", "sync/seconds")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--rates", nargs="+", required=True, help="learning rates")
    parser.add_argument("--syncs", type=int, default=8, help="syncs of each run (%(default)s)")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="of the servers (%(default)s)")
    options: Any = parser.parse_args()
    recipe, _, attribute = options.recipe.partition(":")
    recipe = ":".join(filter(None, [str(Path(recipe).resolve()), attribute]))
    print(
        f"{'rate':8}{'dtype':10}{'changed':>9}{'of the bytes':>14}{'MB':>8}{'seconds':>9}{'MB, full':>10}{'seconds':>9}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        for rate in options.rates:
            given = [*options.set, f"optimizer.lr={rate}"]
            files = record(recipe, given, options.syncs, Path(temporary) / f"rate-{rate}")
            folder = Path(load_recipe(recipe, given).model.path)
            for name in options.dtypes:
                dtype = getattr(torch, name)
                server: dict[str, Any] = {"server": {"dtype": name}, "run_folder": Path(temporary)}
                owner: Any = sglang.engine(folder, **server, delta=1)
                try:
                    os.environ["MEGATRON_SSPO_SERVER_KEY"] = owner.key
                    server["urls"] = [each.client.url for each in owner.pool.servers]
                    size, seconds = send(folder, files, dtype, **server, delta=len(files))
                    whole, seconds_whole = send(folder, files, dtype, **server)
                finally:
                    owner.close()
                changed = f"{statistics.median(shares_of_changes(files, dtype)):>9.1%}{size / whole:>14.3f}"
                times = f"{1e3 * size:>8.2f}{seconds:>9.2f}{1e3 * whole:>10.2f}{seconds_whole:>9.2f}"
                print(f"{rate:8}{name:10}{changed}{times}", flush=True)
            for file in files:
                file.unlink()


if __name__ == "__main__":
    main()
