"""The keys of the weight table's parameters in a `torch_dist` checkpoint: names of rows <-> keys of the checkpoint.

Layers and experts are leading dimensions of one tensor.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Names of the norm before the MLP. Transformer Engine fuses it into a dense MLP and keeps it separate before experts;
# Megatron's local layer spec uses the first name for both.
_FUSED_NORM, _NORM = "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a row's parameter: a key, and the index into the leading dimensions of its tensor."""

    key: str
    index: tuple[int, ...]


class Places:
    """The places that Megatron's layer specs give each row of a table. The first place of a row is the one to write.

    Args:
        names: the names of all rows of the table.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._has_experts = {name.split(".mlp.")[0] for name in self._names if ".mlp.experts." in name}

    def of(self, name: str) -> list[Place]:
        """Returns the places of a row, by its name."""
        match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
        if match is None:
            return [Place(name, ())]
        layer = int(match[1])
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(.+)", match[2])
        if expert is not None:
            rest, index = f"mlp.experts.experts.{expert[2]}", (int(expert[1]),)
            return _in_layer(layer, rest, index)
        if match[2] == "input_layernorm.weight":
            return _in_layer(layer, "self_attention.linear_qkv.layer_norm_weight")
        if match[2] == _NORM:
            names = (_NORM, _FUSED_NORM) if f"decoder.layers.{layer}" in self._has_experts else (_FUSED_NORM,)
            return [place for rest in names for place in _in_layer(layer, rest)]
        return _in_layer(layer, match[2])

    def leading_sizes(self) -> dict[str, tuple[int, ...]]:
        """Returns key -> sizes of its tensor's leading dimensions."""
        sizes: dict[str, list[int]] = {}
        for name in self._names:
            for place in self.of(name):
                known = sizes.setdefault(place.key, [0] * len(place.index))
                known[:] = [max(size, number + 1) for size, number in zip(known, place.index, strict=True)]
        return {key: tuple(found) for key, found in sizes.items()}

    def extra_states(self) -> list[str]:
        """Returns the keys of the modules' extra states: scales of FP8, which do not exist for other dtypes.

        Megatron requires these keys for every dtype, and does not load a checkpoint without them.
        """
        leading = self.leading_sizes()
        places = {(place.key, place.index) for name in self._names for place in self.of(name) if _is_stacked(place)}
        attention = "decoder.layers.self_attention"
        places |= {(f"{attention}.core_attention.weight", i) for key, i in places if key.startswith(attention)}
        leading[f"{attention}.core_attention.weight"] = leading[f"{attention}.linear_qkv.weight"]
        found = []
        for key, index in sorted(places):
            module, _, parameter = key.rpartition(".")
            if parameter == "weight":
                number, count = (".".join(map(str, values)) for values in (index or (0,), leading[key] or (1,)))
                found.append(f"{module}._extra_state/shard_{number}_{count}")
        return found


def _is_stacked(place: Place) -> bool:
    return re.match(r"decoder\.layers\.\d", place.key) is None


def _in_layer(layer: int, rest: str, index: Sequence[int] = ()) -> list[Place]:
    """Returns two places: stacked over the layers, as Megatron writes if all are alike, and with a key per layer."""
    return [Place(f"decoder.layers.{rest}", (layer, *index)), Place(f"decoder.layers.{layer}.{rest}", tuple(index))]
