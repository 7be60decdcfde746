"""`Sweep`: which runs there are. Each combination of values is run with each seed."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron_sspo.errors import UserError
from megatron_sspo.sweep.values import Given, Value, cut, named_values

PATH, SEED = "model.path=", "{seed}"
_LONGEST_NAME = 200  # bytes, of a run's folder


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: of its folder.
        labels: field -> the label of its value.
        assignments: of `--set`, without those that all runs have.
        seed: of the run.
    """

    name: str
    labels: Mapping[str, str]
    assignments: tuple[str, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid of runs.

    Attributes:
        recipe: as `megatron-sspo train` takes it.
        assignments: of `--set`, for all runs; `{seed}` in the path of the model stands for a run's seed.
        vary: field -> its values, in the order in which they were given.
        seeds: runs have the seeds 0 to `seeds` - 1.
        order: the names of the runs, in the order in which they are started; a run keeps its place for ever.
        run: the configuration that all runs share, as `describe` gives it.
    """

    recipe: str
    assignments: tuple[str, ...] = ()
    vary: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    seeds: int = 1
    order: Sequence[str] = ()
    run: Mapping[str, Any] = field(default_factory=dict)

    def assignments_of(self, cell: Cell) -> list[str]:
        """Returns the assignments of `--set` that make the recipe this run."""
        shared = [text.replace(SEED, str(cell.seed)) if text.startswith(PATH) else text for text in self.assignments]
        return [*shared, *cell.assignments]

    def cells(self) -> list[Cell]:
        """All runs, in their order; those that have no place in it yet come last, the first seed of each first."""
        found = {}
        for seed in range(self.seeds):
            for values in itertools.product(*self.vary.values()):
                chosen = dict(zip(self.vary, values, strict=True))
                parts = [*(f"{name}={value.name}" for name, value in chosen.items()), f"seed={seed}"]
                whole = ",".join([*(f"{name}={value.text}" for name, value in chosen.items()), f"seed={seed}"])
                cell = Cell(
                    name=cut(",".join(parts), _LONGEST_NAME, whole),
                    labels={name: value.label for name, value in chosen.items()},
                    assignments=(*(f"{name}={value.text}" for name, value in chosen.items()), f"seed={seed}"),
                    seed=seed,
                )
                found[cell.name] = cell
        known = [found.pop(name) for name in self.order if name in found]
        return [*known, *found.values()]

    def extended(self, vary: Mapping[str, Sequence[Given]], seeds: int) -> "Sweep":
        """This sweep with further values and seeds; what is there stays.

        Raises:
            UserError: other fields are varied, or a label is used twice.
        """
        if self.order and list(vary) != list(self.vary):
            raise UserError(
                f"the sweep varies {_listed(self.vary)}, and this command {_listed(vary)}: vary the same fields in the "
                "same order, or choose another --output"
            )
        values = {name: named_values(self.vary.get(name, ()), given, name) for name, given in vary.items()}
        grown = Sweep(
            recipe=self.recipe,
            assignments=self.assignments,
            vary=values,
            seeds=max(seeds, self.seeds),
            order=self.order,
            run=self.run,
        )
        return Sweep(**{**vars(grown), "order": [cell.name for cell in grown.cells()]})


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "nothing"
