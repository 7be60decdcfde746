"""A model's parameters under the names and shapes that its checkpoint has on disk."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from megatron_sspo.errors import UserError

_NAMES_SHOWN = 3


class NamedWeights:
    """Writes tensors with the names of `save_pretrained` into a model, in place.

    In memory Transformers may hold a layer's experts as one parameter; on disk each expert has its own tensors. The
    mapping is not written down here. Instead, Transformers' own conversion from model to disk runs once on parameters
    whose elements are their own flat indices; its output shows where each element on disk comes from.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._architecture = type(model).__name__
        self._slots: dict[str, Tensor] = {}  # name on disk -> a view into the model
        self._tied: set[str] = set()  # to another parameter: a checkpoint may omit it, and Transformers ignores it
        tied = model.all_tied_weights_keys
        for name, parameter in model.state_dict().items():
            positions = torch.arange(parameter.numel()).view(parameter.shape)
            for disk_name, part in revert_weight_conversion(model, {name: positions}).items():
                if disk_name in self._slots:
                    raise NotImplementedError(f"{disk_name} of {self._architecture} is spread over several parameters")
                self._slots[disk_name] = _view(parameter, part)
                if name in tied:
                    self._tied.add(disk_name)

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copies every tensor of the stream into its parameter as soon as it arrives, in the model's own dtype.

        The stream is read to its end even after an error, since it may be a collective of several processes.

        Raises:
            UserError: a name is unknown or missing, or a shape is wrong; the weights are then partly overwritten.
        """
        loaded: set[str] = set()
        faults: dict[str, list[str]] = defaultdict(list)
        for name, tensor in tensors:
            slot = self._slots.get(name)
            if slot is None:
                faults["unknown"].append(name)
            elif tensor.shape != slot.shape:
                faults["of a wrong shape"].append(f"{name} {list(tensor.shape)}, expected {list(slot.shape)}")
            elif name not in self._tied:
                slot.copy_(tensor)
            loaded.add(name)
        if missing := [name for name in self._slots if name not in loaded | self._tied]:
            faults["missing"] = missing
        if faults:
            found = "; ".join(_listed(names, fault) for fault, names in faults.items())
            raise UserError(
                f"the weights do not fit {self._architecture}: {found}; "
                "send every tensor of its checkpoint once, under the checkpoint's names"
            )

    def clear(self) -> None:
        """Drops the references to the model's memory."""
        self._slots.clear()


def _view(parameter: Tensor, positions: Tensor) -> Tensor:
    """Returns the view of `parameter` that holds its elements at `positions`, a strided grid of flat indices."""
    first = int(positions.flatten()[0])
    strides = [
        int(positions.narrow(dim, 1, 1).flatten()[0]) - first if size > 1 else 1
        for dim, size in enumerate(positions.shape)
    ]
    every_position = torch.arange(parameter.numel())
    if not torch.equal(every_position.as_strided(positions.shape, strides, first), positions):
        raise NotImplementedError("Transformers' conversion of this model is more than slices and transposes")
    return parameter.view(-1).as_strided(positions.shape, strides, parameter.storage_offset() + first)


def _listed(names: list[str], fault: str) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    return f"{len(names)} {fault} ({shown})"
