"""`Sweep`: a grid of runs. Each combination of values is run with each seed."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sspo_lab.trainer import LabError
from sspo_lab.values import Value, merge_values, truncate_name

PATH, SEED = "model.path=", "{seed}"
_LONGEST_NAME = 200  # bytes of the name of a run's folder


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: the name of its folder.
        labels: field -> the label of its value.
        assignments: overrides (`--set`) of this run alone.
        seed: the run's seed.
    """

    name: str
    labels: Mapping[str, str]
    assignments: tuple[str, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid of runs.

    Attributes:
        recipe: the recipe's name as for `megatron-sspo train`.
        assignments: overrides (`--set`) of all runs; `{seed}` in the path of the model stands for a run's seed.
        vary: field -> its values, in the order in which they were given.
        seeds: the number of seeds; they are 0 to `seeds` - 1.
        order: the names of the runs in the order in which they start; the place of a run never changes.
        run: the configuration that all runs share, as config.json has it.
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
        """Returns all runs in `order`; the runs that are not in it come last, sorted by seed."""
        found = {}
        for seed in range(self.seeds):
            for values in itertools.product(*self.vary.values()):
                chosen = dict(zip(self.vary, values, strict=True))
                parts = [*(f"{name}={value.name}" for name, value in chosen.items()), f"seed={seed}"]
                assignments = (*(f"{name}={value.text}" for name, value in chosen.items()), f"seed={seed}")
                cell = Cell(
                    name=truncate_name(",".join(parts), _LONGEST_NAME, whole=",".join(assignments)),
                    labels={name: value.label for name, value in chosen.items()},
                    assignments=assignments,
                    seed=seed,
                )
                found[cell.name] = cell
        known = [found.pop(name) for name in self.order if name in found]
        return [*known, *found.values()]

    def extended(self, vary: Mapping[str, Sequence[Value]], seeds: int) -> "Sweep":
        """Returns this sweep with further values and seeds; its present runs stay.

        Raises LabError if the varied fields are others, or a label is used twice.
        """
        if self.order and list(vary) != list(self.vary):
            raise LabError(
                f"the sweep varies {', '.join(self.vary) or 'nothing'}, but this command varies "
                f"{', '.join(vary) or 'nothing'}: vary the same fields in the same order, or choose another --output"
            )
        values = {name: merge_values(self.vary.get(name, ()), given, name) for name, given in vary.items()}
        grown = replace(self, vary=values, seeds=max(seeds, self.seeds))
        return replace(grown, order=[cell.name for cell in grown.cells()])

    def others(self, vary: Mapping[str, Sequence[Value]], seeds: int) -> list[str]:
        """Returns the values and seeds of this sweep that a command does not name, as `FIELD=LABEL` and `seed=N`."""
        found = []
        for name, values in self.vary.items():
            given = {value.text for value in vary[name]}
            found += [f"{name}={value.label}" for value in values if value.text not in given]
        return [*found, *(f"seed={seed}" for seed in range(seeds, self.seeds))]
