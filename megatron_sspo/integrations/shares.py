"""Means and shares of an objective's weights, for the metrics of another trainer."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatron_sspo.objective import Sums


@dataclass
class Shares:
    """Sums and numbers of detached values, from which means are taken after they are added up over processes."""

    values: dict[str, Tensor] = field(default_factory=dict)  # [2] each: the sum and the number

    def add(self, name: str, values: Tensor) -> None:
        """Adds the values of tokens or sequences."""
        values = values.detach().double()
        self.values[name] = torch.stack([values.sum(), values.new_tensor(float(values.numel()))])

    def add_sums(self, sums: Sums) -> None:
        """Adds the weights of an objective: their means, and the shares of tokens with w < ½ and with w = 0."""
        for name, values in (*sums.tokens.items(), *sums.sequences.items()):
            self.add(f"{name}/mean", values)
        if "token_weight" in sums.tokens:
            weight = sums.tokens["token_weight"]
            self.add("token_weight/below_half", weight < 0.5)
            self.add("token_weight/zero", weight == 0)

    def stack(self) -> Tensor:
        """Returns all sums and numbers, to be added up over processes: [K, 2]."""
        return torch.stack(list(self.values.values())).float()

    def means(self, stacked: Tensor) -> dict[str, float]:
        """Returns the means by name, of sums and numbers [K, 2]."""
        means = stacked[:, 0] / stacked[:, 1].clamp(min=1)
        return dict(zip(self.values, means.tolist(), strict=True))
