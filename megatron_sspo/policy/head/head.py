"""The end of the model: the last stage returns hidden states, from which log-probs of response tokens are computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region

from megatron_sspo.batching.microbatch import Microbatch
from megatron_sspo.policy.head.fused import FusedHead, fused_log_probs_and_entropy, likeliest


def forward_without_head(model: Any, chunk: Any, **inputs: Any) -> torch.Tensor:
    """Returns the output of a pipeline stage; on the last stage the input of its output layer, [1, T, H].

    Under sequence parallelism T is this rank's part of the sequence. A model in bfloat16 returns float32. The chunk is
    the GPTModel inside of `model`.
    """
    if not chunk.post_process:
        return model(**inputs)
    with _identity(chunk.output_layer):
        return model(**inputs)


def response_log_probs(
    hidden: torch.Tensor,
    chunk: Any,
    microbatch: Microbatch,
    *,
    temperature: float,
    vocab_size: int,
    group: dist.ProcessGroup | None,
    overlap_grad_reduce: bool = False,
    head: type[FusedHead] = FusedHead,
    top_k: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Returns log-probs and entropies [R] of the response tokens, from the output of `forward_without_head`.

    The other results are those of `likeliest` if `top_k` is above 0, and else those of the microbatch's `top_tokens`.
    """
    tied = chunk.share_embeddings_and_output_weights
    weight = chunk.shared_embedding_or_output_weight() if tied else chunk.output_layer.weight
    rows = hidden[0].to(weight.dtype)
    # both functions give whole hidden states, and their backward passes sum the shares of the ranks
    if group is not None and chunk.output_layer.sequence_parallel:
        rows = gather_from_sequence_parallel_region(rows, group=group)[microbatch.response_rows]
    else:
        rows = rows[microbatch.response_rows]
        if group is not None:
            rows = copy_to_tensor_model_parallel_region(rows, group=group)
    options: Any = {"temperature": temperature, "vocab_size": vocab_size, "group": group}
    if top_k:
        return likeliest(rows, weight, microbatch.response_tokens, top_k, **options)
    return fused_log_probs_and_entropy(
        rows,
        weight,
        microbatch.response_tokens,
        **options,
        top_tokens=microbatch.top_tokens,
        grad_placeholder=overlap_grad_reduce,
        head=head,
    )


@contextmanager
def _identity(layer: torch.nn.Module) -> Iterator[None]:
    """Makes a layer return its input. Its hooks still run: in one, Megatron's DDP waits for the weight's all-gather.

    The `output_processor` of megatron-core 0.18 would skip the layer, and so its hooks.
    """
    layer.forward = lambda hidden, **_: (hidden, None)
    try:
        yield
    finally:
        del layer.forward
