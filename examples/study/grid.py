"""The runs of the study (docs/study.md): which objectives, in which cells, with how many seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BASE_RATE = 1e-4  # lr*, from the sweep `search`: docs/study.md
RATES = (BASE_RATE / 3, BASE_RATE, 3 * BASE_RATE)
PRETRAINED_RATE = 5e-6  # of examples/smollm2_arithmetic.py; no search chose it
SEARCHED_RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
BEYOND = {3e-5: 1e-5, 3e-3: 1e-2}  # an end of the searched rates -> the value that is added if lr* is that end

_OWN = "examples/study/objectives.py"
_TAUS = ((0.2, 0.3), (0.1, 0.1), (0.6, 0.5), (0.5, 0.6), (1.0, 1.0))  # (τ_neg, τ_pos), beside the default

# label -> what `--set objective=` takes
NO_GATE = {"none, tokens": f"{_OWN}:NO_GATE_TOKENS", "none, sequences": f"{_OWN}:NO_GATE_SEQUENCES"}
CORE = {
    "GRPO": "grpo()",
    "GRPO masked": f"{_OWN}:MASKED_GRPO",
    "GSPO": "gspo()",
    "GSPO masked": f"{_OWN}:MASKED_GSPO",
    "GMPO": "gmpo()",
    "GMPO masked": f"{_OWN}:MASKED_GMPO",
    "SAPO": "sapo()",
    "SAPO one-sided": "SequenceObjective(Pessimistic(Sigmoid(1.05, 1.0)), arithmetic)",
    "AtanLog": "sspo()",
    "AtanLog one-sided": "sspo(Pessimistic(AtanLog()))",
}
OTHER_GATES = {
    f"{name}{form}": f"sspo({wrap.format(name + '()')})"
    for name in ("SigLog", "ExpSig", "ExpAtan", "Gumbel")
    for form, wrap in (("", "{}"), (" one-sided", "Pessimistic({})"))
} | {
    "AtanLog of tokens": f"{_OWN}:ATANLOG_TOKENS",
    "AtanLog of tokens one-sided": f"{_OWN}:ATANLOG_TOKENS_ONE_SIDED",
    "AtanLog of the sequence": f"{_OWN}:ATANLOG_SEQUENCE",
    "AtanLog of the sequence one-sided": f"{_OWN}:ATANLOG_SEQUENCE_ONE_SIDED",
}
ONE_SIGN = {
    "AtanLog one-sided for A>0": f"{_OWN}:ONE_SIDED_FOR_POSITIVE",
    "AtanLog one-sided for A<0": f"{_OWN}:ONE_SIDED_FOR_NEGATIVE",
}
TEMPERATURES = {
    f"AtanLog({neg}, {pos}){form}": f"sspo({wrap.format(f'AtanLog({neg}, {pos})')})"
    for neg, pos in _TAUS
    for form, wrap in (("", "{}"), (" one-sided", "Pessimistic({})"))
}
# Without DAPO's dynamic sampling and Dr. GRPO's advantages: all objectives here have the same rollouts and advantages.
OTHER_PAPERS = {
    "DAPO": "dapo()",
    "Dr. GRPO": "dr_grpo(48)",  # the response limit of `sums`
    "dual clip": "dual_clip()",
    "Scopic": "scopic()",
    "PSPO": "pspo()",
    "CE-GPPO": "ce_gppo()",
    "ERC": "erc()",
    "CISPO": "cispo()",
    "ASPO": "aspo()",
    "SPO": "spo()",
    "DRPO": "drpo()",
    "GMPO wide": "gmpo_wide()",
    "LUSPO": "luspo()",
    "RLOO": "rloo()",
    "DPPO-TV": "dppo_tv()",
    "DPPO-KL": "dppo_kl()",
    "OPSM": "opsm()",
    "VESPO": "vespo()",
}
MILD = {name: CORE[name] for name in ("GRPO", "GSPO", "GMPO", "SAPO", "AtanLog", "AtanLog one-sided")}
FEW = {name: CORE[name] for name in ("GRPO", "SAPO", "AtanLog", "AtanLog one-sided")}
RULED = {name: CORE[name] for name in ("GRPO", "GSPO", "SAPO", "SAPO one-sided", "AtanLog", "AtanLog one-sided")}
_RULES = {"rate by ESS": "optimizer.full_rate_ess=1", "rate by KL": "optimizer.full_rate_kl=0.0003"}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One sweep: a product of objectives, values of μ and learning rates.

    Attributes:
        rates: the learning rates; with `search`, multiples of lr*.
        seeds: the number of seeds that its question needs.
        assignments: of `--set`, for all of its runs.
        search: the sweep that chooses the recipe's lr*; "" if the learning rates are known.
        screening: the sweep whose collected runs choose among the objectives; "" if all of them are run.
        described: whether its cells are described alone and compared with no others.
        warm_start: whether its runs start from the recipe's warm start of their seed.
    """

    objectives: Mapping[str, str]
    updates_per_sync: Sequence[int]
    rates: Sequence[float]
    seeds: int
    recipe: str = "sums"
    assignments: Sequence[str] = field(default_factory=tuple)
    search: str = ""
    screening: str = ""
    described: bool = False
    warm_start: bool = True


def _search(recipe: str) -> Sweep:
    """Returns the on-policy search of a recipe's lr*, in which every objective has the same gradient."""
    return Sweep(recipe=recipe, objectives={"AtanLog": "sspo()"}, updates_per_sync=[1], rates=SEARCHED_RATES, seeds=3)


_REST = {name: text for name, text in CORE.items() if name not in MILD}

SCREENING = "other papers screening"

# in the order in which they are run; no cell is in two of them, but for those of the screening
SWEEPS = {
    "search": _search("sums"),
    "staleness": Sweep(objectives=CORE, updates_per_sync=[8], rates=RATES[1:], seeds=8),
    "mild": Sweep(objectives=MILD, updates_per_sync=[2, 4], rates=RATES[1:2], seeds=8),
    "gates": Sweep(objectives=OTHER_GATES | ONE_SIGN, updates_per_sync=[8], rates=RATES[1:2], seeds=8),
    "map 1": Sweep(objectives={"AtanLog": "sspo()"}, updates_per_sync=[1], rates=[RATES[0], RATES[2]], seeds=2),
    "map 2 and 4 rest": Sweep(
        objectives=_REST | NO_GATE, updates_per_sync=[2, 4], rates=RATES[1:2], seeds=2, described=True
    ),
    "map 2 and 4": Sweep(
        objectives=CORE | NO_GATE, updates_per_sync=[2, 4], rates=[RATES[0], RATES[2]], seeds=2, described=True
    ),
    "map 8": Sweep(objectives=CORE | NO_GATE, updates_per_sync=[8], rates=RATES[:1], seeds=8),
    "map 8 no gate": Sweep(objectives=NO_GATE, updates_per_sync=[8], rates=RATES[1:], seeds=2),
    "map 16": Sweep(objectives=CORE | NO_GATE, updates_per_sync=[16], rates=RATES, seeds=2, described=True),
    "temperatures": Sweep(objectives=TEMPERATURES, updates_per_sync=[8], rates=RATES[1:2], seeds=8),
    "replay": Sweep(
        objectives=FEW,
        updates_per_sync=[8],
        rates=RATES[1:2],
        seeds=8,
        assignments=["routing_replay=R2"],
    ),
    SCREENING: Sweep(objectives=OTHER_PAPERS, updates_per_sync=[8], rates=RATES[1:], seeds=2),
    "other papers": Sweep(objectives=OTHER_PAPERS, updates_per_sync=[8], rates=RATES[1:], seeds=8, screening=SCREENING),
    "other papers mild": Sweep(
        objectives=OTHER_PAPERS, updates_per_sync=[2, 4], rates=RATES[1:2], seeds=8, screening=SCREENING
    ),
    **{
        f"{rule}{name}": Sweep(
            objectives=RULED,
            updates_per_sync=[mu],
            rates=[rate],
            seeds=8 if mu == 8 and rate < 10 * BASE_RATE else 2,
            assignments=[assignment],
        )
        for name, mu, rate in (
            ("", 8, RATES[2]),
            (" at lr", 8, RATES[1]),
            (" at 16", 16, RATES[2]),
            (" at 10 lr", 8, 10 * BASE_RATE),
        )
        for rule, assignment in _RULES.items()
    },
    "map 8 at 10 lr": Sweep(objectives=RULED, updates_per_sync=[8], rates=[10 * BASE_RATE], seeds=2, described=True),
    "search dense sums": _search("dense_sums"),
    "dense sums": Sweep(
        recipe="dense_sums", objectives=FEW, updates_per_sync=[8], rates=[1], seeds=8, search="search dense sums"
    ),
    "search long sums": _search("long_sums"),
    "long sums": Sweep(
        recipe="long_sums", objectives=MILD, updates_per_sync=[8], rates=[1], seeds=8, search="search long sums"
    ),
    "pretrained": Sweep(
        recipe="pretrained_sums",
        objectives=FEW,
        updates_per_sync=[8],
        rates=[PRETRAINED_RATE, 3 * PRETRAINED_RATE],
        seeds=2,
        warm_start=False,
    ),
    "pretrained on a GPU": Sweep(
        recipe="pretrained_sums_on_gpu",
        objectives=FEW,
        updates_per_sync=[8],
        rates=[PRETRAINED_RATE, 3 * PRETRAINED_RATE],
        seeds=8,
        warm_start=False,
    ),
    "pretrained on-policy": Sweep(
        recipe="pretrained_sums_on_gpu",
        objectives={"AtanLog": "sspo()"},
        updates_per_sync=[1],
        rates=[PRETRAINED_RATE, 3 * PRETRAINED_RATE, 10 * PRETRAINED_RATE],
        seeds=3,
        described=True,
        warm_start=False,
    ),
}
SEARCHES = {"search", *(sweep.search for sweep in SWEEPS.values() if sweep.search)}
# compared with no other sweep, so their warm starts may be others
ALONE = SEARCHES | {name for name, sweep in SWEEPS.items() if sweep.described}


def folder_name(sweep: str) -> str:
    """Returns the name of a sweep's folder."""
    return sweep.replace(",", "").replace(" ", "-")
