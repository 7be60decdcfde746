"""Rows of the weight table, compared with cuts written out by hand, in both directions."""

import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.weights.family import load_family
from megatron_sspo.weights.formats.hf_folder import HFFolder
from megatron_sspo.weights.sharding import Block
from megatron_sspo.weights.table import check_coverage, check_tied, gate_up, qkv, replicated, row_parallel, vocab
from tests.weights.tiny_checkpoints import DIVISIBLE, KINDS

PADDED = {1: 97, 2: 98, 4: 100}


def reader(tensors):
    return lambda name, dim, start, stop: tensors[name].narrow(dim, start, stop - start)


def tensors_of(row):
    shapes = zip(row.hf, row.hf_shapes, strict=True)
    return {name: 100.0 * i + torch.rand(shape) for i, (name, shape) in enumerate(shapes)}


def shards_of(row, tensors, num_shards):
    return [row.to_megatron(reader(tensors), shard, num_shards) for shard in range(num_shards)]


ROWS = [
    replicated("norm", "a", (7,)),
    replicated("router", "a", (6, 5)),
    row_parallel("fc2", "a", (5, 8), "intermediate_size"),
    gate_up("fc1", ("gate", "up"), (8, 5), "intermediate_size"),
    qkv("qkv", ("q", "k", "v"), num_heads=8, num_groups=4, head_dim=3, inputs=(5,)),
    qkv("qkv with more shards than groups", ("q", "k", "v"), num_heads=8, num_groups=2, head_dim=6, inputs=(5,)),
    qkv("qkv bias", ("q", "k", "v"), num_heads=8, num_groups=4, head_dim=3, inputs=()),
    vocab("embedding", "a", (97, 5), 100),
    vocab("embedding with shards of padding alone", "a", (9, 5), 40),
]


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_shards_join_to_the_tensors(row, num_shards):
    tensors = tensors_of(row)
    shards = shards_of(row, tensors, num_shards)
    assert {tuple(shard.shape) for shard in shards} == {row.shape(num_shards)}
    back = row.to_hf(shards)
    assert list(back) == list(row.hf)
    assert all(torch.equal(back[name], tensors[name]) for name in row.hf)


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("row", [row for row in ROWS if row.group != "none"], ids=lambda row: row.name)
def test_blocks_cover_every_tensor_once(row, num_shards):
    blocks = [block for shard in range(num_shards) for block in row.blocks(shard, num_shards)]
    for source, shape in enumerate(row.hf_shapes):
        covered = [i for block in blocks if block.source == source for i in range(block.start, block.stop)]
        assert covered == list(range(shape[row.dim]))


def test_qkv_splits_as_megatron_splits_it():
    """Megatron views linear_qkv's output as [groups, (heads/groups + 2)·head_dim] and splits that into q, k, v."""
    heads, groups, head = 8, 4, 3
    row = qkv("qkv", ("q", "k", "v"), num_heads=heads, num_groups=groups, head_dim=head, inputs=(5,))
    tensors = tensors_of(row)
    for num_shards in (1, 2, 4):
        for shard, weight in enumerate(shards_of(row, tensors, num_shards)):
            local = groups // num_shards
            mixed = weight.view(local, (heads // groups + 2) * head, 5)
            split = torch.split(mixed, [heads // groups * head, head, head], dim=1)
            for name, part in zip("qkv", split, strict=True):
                expected = tensors[name].chunk(num_shards)[shard]
                assert torch.equal(part.reshape(-1, 5), expected)


def test_gate_up_shard_is_its_gate_then_its_up():
    row = gate_up("fc1", ("gate", "up"), (8, 5), "intermediate_size")
    tensors = tensors_of(row)
    second = row.to_megatron(reader(tensors), 1, 2)
    assert torch.equal(second, torch.cat([tensors["gate"][4:], tensors["up"][4:]]))


def test_padding_is_zeros_and_of_the_same_dtype():
    row = vocab("embedding", "a", (97, 5), 104)
    tensors = {"a": torch.rand(97, 5).bfloat16()}
    shards = shards_of(row, tensors, 4)
    assert row.blocks(3, 4) == (Block(0, 78, 97), Block(None, 0, 7))
    assert torch.equal(shards[3][19:], torch.zeros(7, 5, dtype=torch.bfloat16))
    assert torch.equal(row.to_hf([shard + 0 for shard in shards])["a"], tensors["a"])


@pytest.mark.parametrize(
    ("row", "num_shards", "message"),
    [
        (
            qkv("x", ("q", "k", "v"), num_heads=12, num_groups=4, head_dim=2, inputs=(5,)),
            6,
            "num_key_value_heads 4 cannot be cut into 6 tensor-parallel shards (x); use tensor parallel size 1 or "
            "another divisor of 4",
        ),
        (
            row_parallel("x", "a", (5, 6), "moe_intermediate_size", "expert_tensor"),
            4,
            "moe_intermediate_size 6 cannot be cut into 4 expert-tensor-parallel shards (x); "
            "use expert tensor parallel size 1 or another divisor of 6",
        ),
        (vocab("x", "a", (97, 5), 97), 2, "the padded vocabulary size 97 cannot be cut into 2 tensor-parallel shards"),
    ],
)
def test_a_size_that_cannot_be_cut(row, num_shards, message):
    with pytest.raises(UserError) as error:
        row.blocks(0, num_shards)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "num_shards"),
    [(kind, num_shards) for num_shards in (1, 2, 4) for kind in (KINDS if num_shards == 1 else DIVISIBLE)],
)
def test_checkpoint_to_shards_and_back_is_bitwise(checkpoint, kind, num_shards):
    folder = HFFolder(checkpoint(kind))
    rows = load_family(folder.config).rows(folder.config, PADDED[num_shards])
    check_coverage(rows, folder.shapes(), folder.path)
    back: dict[str, list[torch.Tensor]] = {}
    for row in rows:
        count = 1 if row.is_fused else num_shards
        shards = [row.to_megatron(folder.read, shard, count) for shard in range(count)]
        whole_tensors = {name: folder.read(name) for name in row.hf}
        for shard, found in enumerate(shards):  # a shard read by slices is the shard cut from whole tensors
            assert torch.equal(found, row.to_megatron(reader(whole_tensors), shard, count))
        for name, part in row.to_hf(shards).items():
            back.setdefault(name, []).append(part)
    assert set(back) == set(folder.shapes())
    assert all(torch.equal(torch.cat(parts), folder.read(name)) for name, parts in back.items())


def test_coverage_lists_what_does_not_match():
    rows = [replicated(f"row {i}", f"hf.{i}", (3,)) for i in range(15)]
    shapes = {row.hf[0]: (3,) for row in rows}
    check_coverage(rows, shapes, "here")
    with pytest.raises(UserError) as error:
        check_coverage(rows, {"hf.0": (4,), "extra": (1,)} | {f"hf.{i}": (3,) for i in (13, 14)}, "/models/here")
    message = str(error.value)
    assert message.startswith("/models/here does not hold")
    assert "12 missing: hf.1, hf.2, hf.3, hf.4, hf.5, hf.6, hf.7, hf.8, hf.9, hf.10, ...;" in message
    assert "1 without a row in the weight table: extra;" in message
    assert "1 of the wrong shape: hf.0 [4] instead of [3]" in message


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["_orig_mod.a", "_orig_mod.b.weight"], "have a prefix, .*: save the model inside it"),
        (["base_model.model.a"], "have a prefix, .*: save the model inside it"),
        (["x.c", "y.weight"], "check that config.json belongs to these weights"),
        (["a", "b.base_layer.weight"], "merge PEFT's adapter into the model with merge_and_unload"),
    ],
)
def test_coverage_says_what_to_do_about_a_wrapped_model(names, message):
    rows = [replicated("x", "a", (3,)), replicated("y", "b.weight", (3,))]
    with pytest.raises(UserError, match=message):
        check_coverage(rows, dict.fromkeys(names, (3,)), "here")


def test_a_tied_copy_is_accepted_where_it_is_a_copy():
    rows = [vocab("embedding", "a", (9, 5), 9, copies=("lm_head.weight",))]
    tensors = {"a": torch.rand(9, 5)}
    check_coverage(rows, {"a": (9, 5)}, "here")
    check_tied(rows, tensors, reader(tensors), "here")
    tensors["lm_head.weight"] = tensors["a"].clone()
    check_coverage(rows, {"a": (9, 5), "lm_head.weight": (9, 5)}, "here")
    check_tied(rows, tensors, reader(tensors), "here")
    for tensor in tensors.values():
        tensor[0, 0] = torch.nan
    check_tied(rows, tensors, reader(tensors), "here")
    tensors["lm_head.weight"][8, 4] += 1
    with pytest.raises(UserError, match=r"here ties lm_head.weight to a .* but their values differ"):
        check_tied(rows, tensors, reader(tensors), "here")
    with pytest.raises(UserError, match=r"lm_head.weight \[8, 5\] instead of \[9, 5\]"):
        check_coverage(rows, {"a": (9, 5), "lm_head.weight": (8, 5)}, "here")
