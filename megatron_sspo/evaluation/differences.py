"""The settings in which evaluations of one set differ, so that their numbers do not compare the models alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from megatron_sspo.evaluation.table import Result

_FREE = ("engine", "seed", "samples", "dropped")  # evaluations that differ in these alone are still comparable
_SAMPLED = ("sampling.temperature", "sampling.top_p")  # greedy answers do not depend on these


def find_differences(results: Sequence[Result]) -> list[tuple[Result, str]]:
    """Compares each evaluation of a set with the first one, if the settings of both are known.

    Returns:
        Each evaluation that differs from the first, with a sentence that names the set and the fields.
    """
    found = []
    for name in dict.fromkeys(name for result in results for name in result.sets):
        known = [result for result in results if name in result.sets and name in result.settings]
        for other in known[1:]:
            if fields := _fields(known[0].settings[name], other.settings[name]):
                text = f"{name}: {other.model} and {known[0].model} have different {', '.join(fields)}, so their"
                found.append((other, f"{text} numbers do not compare the models alone"))
    return found


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with a key such as "sampling.max_tokens" for each field of a group."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return found


def _fields(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    free = () if first["samples"] and other["samples"] else _SAMPLED
    before, now = (flat({key: value for key, value in each.items() if key not in _FREE}) for each in (first, other))
    return [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]
