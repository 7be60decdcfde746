"""Checkpoints of torch and of Megatron-Core, in pieces and with keys of their own."""

import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from megatron_sspo.checkpoint.sharded import _MCORE_WRITERS
from megatron_sspo.errors import UserError
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.conversion.verify import verify
from megatron_sspo.weights.formats.torch_dist import read_index
from tests.weights.folders import assert_same_bits
from tests.weights.tiny_checkpoints import KINDS


@pytest.fixture
def tensors(checkpoint, tmp_path):
    """Kind -> the global tensors of that checkpoint, as torch itself loads them from a converted one."""

    def of(kind):
        convert(checkpoint(kind), tmp_path / "converted")
        index = read_index(tmp_path / "converted")
        state = {key: torch.empty(tensor.shape, dtype=tensor.dtype) for key, tensor in index.items()}
        load(state, checkpoint_id=tmp_path / "converted", no_dist=True)
        return state

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_torch(checkpoint, tensors, tmp_path, kind):
    """The index names pathlib.PosixPath, Megatron's files are not there, and all layers are in one record."""
    state = {**tensors(kind), "optimizer.state.exp_avg": torch.ones(3), "iteration": 7}
    state.pop("decoder.layers.pre_mlp_layernorm.weight", None)  # the second key of one tensor
    save(state, storage_writer=FileSystemWriter(tmp_path / "torch"), no_dist=True)
    assert b"pathlib" in (tmp_path / "torch" / ".metadata").read_bytes()
    assert not (tmp_path / "torch" / "metadata.json").exists()
    convert(tmp_path / "torch", tmp_path / "hf", config_folder=checkpoint(kind))
    assert_same_bits(checkpoint(kind), tmp_path / "hf")
    assert verify(checkpoint(kind), tmp_path / "torch", config_folder=checkpoint(kind)).differences == []


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", ["qwen3_moe", "llama_tied"])
def test_a_checkpoint_of_megatron_core(checkpoint, tensors, tmp_path, monkeypatch, kind):
    """The pieces are those of ranks: here columns of a matrix, and a vocabulary with rows of padding."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    state = tensors(kind)
    state.pop("decoder.layers.pre_mlp_layernorm.weight", None)  # the second key of one tensor
    embedding = "embedding.word_embeddings.weight"
    state[embedding] = torch.cat([state[embedding], torch.zeros(31, 16)])  # 97 rows of 128
    sharded = {}
    for key, tensor in state.items():
        if key.endswith("self_attention.linear_proj.weight"):
            for rank, half in enumerate(tensor.chunk(2, dim=-1)):
                sharded[f"{key} {rank}"] = ShardedTensor.from_rank_offsets(key, half.contiguous(), (2, rank, 2))
        else:
            sharded[key] = ShardedTensor.from_rank_offsets(key, tensor)
    (tmp_path / "megatron").mkdir()
    # without a GPU only the writer in the background can be used, and it asks for one, too
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    state = {"model": sharded, "iteration": 7}
    request: Any = dist_checkpointing.save(state, str(tmp_path / "megatron"), async_sharded_save=True, **_MCORE_WRITERS)
    request.execute_sync()
    convert(tmp_path / "megatron", tmp_path / "hf", config_folder=checkpoint(kind))
    assert_same_bits(checkpoint(kind), tmp_path / "hf")


def test_a_rank_that_wrote_nothing_is_noticed(tensors, checkpoint, tmp_path):
    """An index that lacks a piece would leave the memory of that piece as it was."""
    tensors("llama")
    index = pickle.loads((tmp_path / "converted" / ".metadata").read_bytes())
    del index.state_dict_metadata["decoder.layers.mlp.linear_fc2.weight"].chunks[1]
    (tmp_path / "converted" / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(UserError, match=r"lacks parts of decoder.layers.1.mlp.linear_fc2.weight \(decoder.layers.mlp"):
        convert(tmp_path / "converted", tmp_path / "hf")
