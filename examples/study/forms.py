"""The gates of the study in their two forms, by the labels of `grid.py`."""

from dataclasses import dataclass

from examples.study.grid import CORE


@dataclass(frozen=True)
class Forms:
    """A gate that acts on both sides of ρ = 1, and the same gate made one-sided."""

    name: str
    two_sided: str
    one_sided: str

    @property
    def core(self) -> bool:
        """True if the gate is one of the five that are compared at 3 lr*, too."""
        return self.two_sided in CORE


# The usual form of a hard gate is one-sided, and the usual form of a soft gate two-sided.
HARD = tuple(Forms(name, f"{name} masked", name) for name in ("GRPO", "GSPO", "GMPO"))
SOFT = tuple(
    Forms(name, name, f"{name} one-sided")
    for name in (
        "SAPO",
        "AtanLog",
        "SigLog",
        "ExpSig",
        "ExpAtan",
        "Gumbel",
        "AtanLog of tokens",
        "AtanLog of the sequence",
    )
)
GATES = HARD + SOFT
CORE_GATES = tuple(gate for gate in GATES if gate.core)
