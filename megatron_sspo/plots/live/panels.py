"""The panels of the live page, and the numbers of a metrics row that they show."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_PASS = "/pass@1"  # of every set of evaluations.jsonl
_LARGEST = 1e300  # larger values are not drawn, because the axis would overflow
_SECONDS = "seconds"  # stands for the sum of all `seconds/*`


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot of all runs.

    Attributes:
        keys: the numbers of metrics.jsonl; the first is a line, others are dashed. Without keys: pass@1 of each set.
        names: the names of the keys on the page.
        off_policy: leaves out on-policy updates, whose ratios are 1 by construction.
    """

    title: str
    unit: str
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    may_be_logarithmic: bool = False
    off_policy: bool = False


PANELS = (
    Panel(title="reward", unit="reward", keys=("reward/mean",)),
    Panel(title="held-out pass@1, greedy", unit="share of prompts"),
    Panel(title="response length", unit="tokens", keys=("response/tokens_mean",)),
    Panel(title="token entropy", unit="nats", keys=("policy/entropy",)),
    Panel(title="gradient norm", unit="norm", keys=("policy/grad_norm",), may_be_logarithmic=True),
    Panel(title="KL(π_old ‖ π_θ) *", unit="nats", keys=("policy/kl_old",), may_be_logarithmic=True, off_policy=True),
    Panel(
        title="tokens of low weight *",
        unit="share of tokens",
        keys=("token_weight/below_half", "token_weight/zero"),
        names=("w < ½", "w = 0, clipped"),
        off_policy=True,
    ),
    Panel(
        title="effective sample size *",
        unit="share of sequences",
        keys=("sequence_weight/effective_sample_size",),
        off_policy=True,
    ),
    Panel(title="KL(engine ‖ trainer)", unit="nats", keys=("engine/kl",), may_be_logarithmic=True),
    Panel(title="cut at the length limit", unit="share of responses", keys=("response/truncated",)),
    Panel(
        title="staleness",
        unit="updates",
        keys=("rollout/staleness", "rollout/staleness_max"),
        names=("mean", "largest"),
    ),
    Panel(
        title="time of an update",
        unit="seconds",
        keys=(_SECONDS, "seconds/rollout"),
        names=("all", "rollout"),
    ),
)
_COLUMNS = tuple((key, panel.off_policy) for panel in PANELS for key in panel.keys)


def describe() -> list[dict[str, Any]]:
    """Returns the panels as JSON values, with the numbers of their columns in the rows of `values`."""
    keys = [key for key, _ in _COLUMNS]
    return [{**asdict(panel), "columns": [keys.index(key) + 1 for key in panel.keys]} for panel in PANELS]


def values(row: Mapping[str, Any]) -> list[float | None]:
    """Returns the update and the numbers of all panels; None for one that is missing or cannot be drawn."""
    seconds = [value for key, value in row.items() if key.startswith(f"{_SECONDS}/") and _number(value) is not None]
    known = {**row, _SECONDS: sum(seconds)} if seconds else row
    is_on_policy = row.get("policy/kl_old") == 0
    numbers = [None if off_policy and is_on_policy else _number(known.get(key)) for key, off_policy in _COLUMNS]
    return [row["update"], *numbers]


def passes(row: Mapping[str, Any]) -> dict[str, Sequence[float | None]]:
    """Returns pass@1 of each set of an evaluation, with the ends of its interval if it has one."""
    keys = [key for key in row if f"/{key}".endswith(_PASS)]
    names = {f"/{key}".removesuffix(_PASS).strip("/"): key for key in keys}
    return {name: [_number(row.get(f"{key}{end}")) for end in ("", "/low", "/high")] for name, key in names.items()}


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and abs(value) < _LARGEST else None
