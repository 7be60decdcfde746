"""The settings in which evaluations of one set differ, so that their numbers do not compare the models alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_sspo.evaluation.table import Result

_FREE = ("engine", "seed", "samples", "dropped")  # evaluations that differ in these alone are still comparable
_SAMPLED = ("sampling.temperature", "sampling.top_p")  # greedy answers do not depend on these


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The fields in which two evaluations of a set differ."""

    set_name: str
    first: Result  # the first evaluation that has the set
    other: Result
    fields: Sequence[str]

    def __str__(self) -> str:
        return (
            f"{self.set_name}: {self.other.model} and {self.first.model} have different {', '.join(self.fields)}, so "
            "their numbers do not compare the models alone"
        )


def find_differences(results: Sequence[Result]) -> list[Difference]:
    """Compares each evaluation of a set with the first one, if the settings of both are known."""
    found = []
    for name in dict.fromkeys(name for result in results for name in result.sets):
        known = [result for result in results if name in result.sets and name in result.settings]
        for other in known[1:]:
            if fields := _fields(known[0].settings[name], other.settings[name]):
                found.append(Difference(set_name=name, first=known[0], other=other, fields=fields))
    return found


def _fields(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    free = _FREE if first["samples"] and other["samples"] else (*_FREE, *_SAMPLED)
    before, now = _flat(first), _flat(other)
    return [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with a key such as "sampling.max_tokens" for each field of a group."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return found
