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
class Location:
    """The location of a row's parameter: a key, and the index into the leading dimensions of its tensor."""

    key: str
    index: tuple[int, ...]


class CheckpointKeys:
    """The locations that Megatron's layer specs give each row of a table. The first one of a row is written."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._has_experts = {name.split(".mlp.")[0] for name in self._names if ".mlp.experts." in name}
        matches = [match for name in self._names if (match := re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name))]
        layers: dict[str, set[str]] = {match[1]: set() for match in matches}
        for match in matches:
            layers[match[1]].add(match[2])
        self._are_alike = len(set(map(frozenset, layers.values()))) < 2

    def locations(self, name: str) -> list[Location]:
        """Returns the locations of a row, by its name."""
        match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
        if match is None:
            return [Location(name, ())]
        layer = int(match[1])
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(.+)", match[2])
        if expert is not None:
            rest, index = f"mlp.experts.experts.{expert[2]}", (int(expert[1]),)
            return self._in_layer(layer, rest, index)
        attention = f"decoder.layers.{layer}.self_attention"
        latent = re.fullmatch(r"self_attention\.(q|kv)_layernorm\.weight", match[2])
        if latent is not None and f"{attention}.linear_{latent[1]}_up_proj.weight" in self._names:
            return self._in_layer(layer, f"self_attention.linear_{latent[1]}_up_proj.layer_norm_weight")
        if match[2] == "input_layernorm.weight" and f"{attention}.linear_qkv.weight" in self._names:
            return self._in_layer(layer, "self_attention.linear_qkv.layer_norm_weight")
        if match[2] == _NORM:
            names = (_NORM, _FUSED_NORM) if f"decoder.layers.{layer}" in self._has_experts else (_FUSED_NORM,)
            return [location for rest in names for location in self._in_layer(layer, rest)]
        return self._in_layer(layer, match[2])

    def _in_layer(self, layer: int, rest: str, index: Sequence[int] = ()) -> list[Location]:
        """Returns a stacked location, as Megatron writes if all layers are alike, and one with a key per layer.

        If only some layers have experts, or linear attention, Megatron knows the second alone.
        """
        stacked = Location(f"decoder.layers.{rest}", (layer, *index))
        alone = Location(f"decoder.layers.{layer}.{rest}", tuple(index))
        return [stacked, alone] if self._are_alike else [alone]

    def leading_sizes(self) -> dict[str, tuple[int, ...]]:
        """Returns key -> sizes of its tensor's leading dimensions."""
        sizes: dict[str, list[int]] = {}
        for name in self._names:
            for location in self.locations(name):
                known = sizes.setdefault(location.key, [0] * len(location.index))
                known[:] = [max(size, number + 1) for size, number in zip(known, location.index, strict=True)]
        return {key: tuple(found) for key, found in sizes.items()}

    def extra_state_keys(self) -> list[str]:
        """Returns the keys of the modules' extra states: scales of FP8, which do not exist for other dtypes.

        Megatron requires these keys for every dtype, and does not load a checkpoint without them.
        """
        leading = self.leading_sizes()
        found = (at for name in self._names for at in self.locations(name))
        alone = r"decoder\.layers\.\d"  # what a key of one layer begins with
        locations = {(at.key, at.index) for at in found if not (self._are_alike and re.match(alone, at.key))}
        projections = r"self_attention\.linear_(qkv|kv_up_proj)\.weight$"
        for key, index in [pair for pair in locations if re.search(projections, pair[0])]:
            attention = re.sub(projections, "self_attention.core_attention.weight", key)
            locations.add((attention, index))
            leading[attention] = leading[key]
        keys = []
        for key, index in sorted(locations):
            module, _, parameter = key.rpartition(".")
            if parameter == "weight":
                number, count = (".".join(map(str, values)) for values in (index or (0,), leading[key] or (1,)))
                keys.append(f"{module}._extra_state/shard_{number}_{count}")
        return keys
