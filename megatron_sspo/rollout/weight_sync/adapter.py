"""Weight sync of adapters: a server gets the base once, and at each sync the factors alone."""

import base64
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import torch

from megatron_sspo.errors import UserError
from megatron_sspo.processes import agree
from megatron_sspo.rollout.servers.client import ServerError
from megatron_sspo.rollout.weight_sync.session import NamedTensor, Observe, SyncSession, Transport, at_rank_0
from megatron_sspo.rollout.weight_sync.tensor import serialize
from megatron_sspo.run import LoRA
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.gather import AdapterPlan

NAME = "policy"  # of the adapter on the servers, which requests name


class AdapterTransport(Transport):
    """Sends the base by another transport, to servers that lack it, and the factors in the body of one request.

    No response may be in progress: SGLang unloads an adapter after the last response that uses it. Weights without
    adapters are sent by the other transport as they are.

    """

    def __init__(self, transport: Transport, *, tp_size: int) -> None:
        self._transport, self._tp_size = transport, tp_size

    def send(
        self, session: SyncSession, tensors: Iterable[NamedTensor], version: str, observe: Observe | None = None
    ) -> None:
        """Replaces the adapter of the session's servers; `observe` sees the base, if that is sent."""
        plan: AdapterPlan | None = getattr(tensors, "adapter", None)
        if plan is None:
            self._transport.send(session, tensors, version, observe)
            return
        unloaded = session.start("/unload_lora_adapter", {"lora_name": NAME}).answers()
        # a server without the adapter was started since the last sync, perhaps by its owner
        lacking = [
            server for server, answer in unloaded.items() if server.version is None or isinstance(answer, ServerError)
        ]
        if agree.broadcast_from_rank_0(bool(lacking)):
            with session.only(lacking):
                self._transport.send(session, plan.base, version, observe)
        factors = [(name, tensor.detach().cpu()) for name, tensor in at_rank_0(plan.factors())]
        session.num_bytes += sum(tensor.nbytes for _, tensor in factors)
        content = {
            "lora_name": NAME,
            "config_dict": plan.config,
            "serialized_named_tensors": [base64.b64encode(serialize(factors)).decode()] * self._tp_size,
            "load_format": "flattened_bucket",
            "expected_checksums": {name: _digest(tensor) for name, tensor in factors},
        }
        session.post("/load_lora_adapter_from_tensors", content)
        session.post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    def participate(self, tensors: Iterable[NamedTensor]) -> None:
        """Takes part in `send`, a collective, in the other trainer processes."""
        plan: AdapterPlan | None = getattr(tensors, "adapter", None)
        if plan is None:
            self._transport.participate(tensors)
            return
        if agree.broadcast_from_rank_0(False):
            self._transport.participate(plan.base)
        for _ in at_rank_0(plan.factors()):
            pass

    def close(self, session: SyncSession | None = None) -> None:
        """Releases the other transport's resources."""
        self._transport.close(session)


def check_model(adapters: LoRA | None, config: Mapping[str, Any]) -> None:
    """Refuses adapters of experts, and of MLPs beside experts: SGLang would wrap the experts, and load no weights."""
    if adapters is not None and {"mlp", "experts"} & {*adapters.targets} and load_family(config).expert_names:
        raise UserError(
            f'rollouts.options.lora is "adapter", and lora.targets is {adapters.targets} in a model with experts, into '
            'which SGLang would load no weights: choose "merged", or adapters of attention alone'
        )


def _digest(tensor: torch.Tensor) -> str:
    return sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
