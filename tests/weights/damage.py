"""Ways to damage the files of a model: each function damages a folder in place."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties

from tests.weights.folders import edit_json

Damage = Callable[[Path], object]
INDEX = "model.safetensors.index.json"


def config(**values: Any) -> Damage:
    """Sets fields of config.json; `...` removes one."""

    def edit(content: dict[str, Any]) -> None:
        content.update(values)
        for name in [name for name, value in values.items() if value is ...]:
            del content[name]

    return lambda folder: edit_json(folder / "config.json", edit)


def raw(name: str, content: bytes) -> Damage:
    return lambda folder: _replace(folder, name, lambda path: path.write_bytes(content))


def special(name: str, make: Callable[[Path], Any]) -> Damage:
    """Replaces a file by something that is not a regular file."""
    return lambda folder: _replace(folder, name, make)


def _replace(folder: Path, name: str, make: Callable[[Path], Any]) -> None:
    path = shard(folder) if name == "shard" else folder / name
    path.unlink(missing_ok=True)
    make(path)


def shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def header(edit: Callable[[dict[str, Any]], Any]) -> Damage:
    """Edits the header of a safetensors file, and leaves the tensors as they are."""

    def damage(folder: Path) -> None:
        content = shard(folder).read_bytes()
        [length] = struct.unpack("<Q", content[:8])
        entries = json.loads(content[8 : 8 + length])
        entries.pop("__metadata__", None)
        changed = edit(entries)
        text = changed if isinstance(changed, bytes) else json.dumps(entries if changed is None else changed).encode()
        shard(folder).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])

    return damage


def first_entry(**values: Any) -> Damage:
    return header(lambda entries: next(iter(entries.values())).update(values))


def _duplicate(entries: dict[str, Any]) -> bytes:
    name, entry = next(iter(entries.items()))
    return json.dumps(entries).encode()[:-1] + f",{json.dumps(name)}:{json.dumps(entry)}}}".encode()


def _rename(entries: dict[str, Any], new: str) -> None:
    entries[new] = entries.pop(next(iter(entries)))


def index(value: Any) -> Damage:
    return lambda folder: edit_json(folder / INDEX, lambda content: content.update(weight_map=value))


def placed_in(name: Any) -> Damage:
    def edit(content: dict[str, Any]) -> None:
        content["weight_map"][next(iter(content["weight_map"]))] = name

    return lambda folder: edit_json(folder / INDEX, edit)


def outside(folder: Path) -> None:
    """Moves a file out of the folder and lets the index name it there."""
    file = shard(folder)
    file.rename(folder.parent / file.name)
    edit_json(
        folder / INDEX,
        lambda content: content.update(
            weight_map={k: f"../{v}" if v == file.name else v for k, v in content["weight_map"].items()}
        ),
    )


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def null(path: Path) -> None:
    path.symlink_to("/dev/zero")


NESTED = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
LIST = b"[" * 100_000
MANY_DIGITS = b'{"hidden_size": ' + b"9" * 10_000 + b"}"

_NAMES = ("config.json", INDEX, "shard", "tokenizer.json", "merges.txt")
_SPECIAL = {"pipe": os.mkfifo, "folder": Path.mkdir, "loop": loop, "link to nothing": nothing, "device": null}

SPECIAL = {f"{name} is a {kind}": special(name, make) for name in _NAMES for kind, make in _SPECIAL.items()}
CONTENT = {
    f"{name} is {what}": raw(name, content)
    for name in ("config.json", INDEX, "shard")
    for what, content in {
        "empty": b"",
        "a list": b"[]",
        "null": b"null",
        "not UTF-8": b'{"a": "\xff\xfe"}',
        "with NaN": b'{"a": NaN}',
        "deeply nested": NESTED,
        "an open list": LIST,
        "of many digits": MANY_DIGITS,
        "zeros": bytes(1000),
        "cut": b'{"hidden_size": 1',
        "an object": b"{}",
        "UTF-16": '{"hidden_size": 16}'.encode("utf-16"),
        "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }.items()
}
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_NO_SIZES = (0, -1, 1.5, "16", True, [16], {}, 10**7, 10**30, float("nan"), float("inf"))
_REALS = ("rms_norm_eps", "rope_theta")
_NO_REALS = (None, 0, -1.0, "1e6", True, [], float("nan"), float("inf"))
_FLAGS = ("tie_word_embeddings", "norm_topk_prob")
_HARMLESS = [  # the weights of a model with experts in every layer do not depend on these
    ("intermediate_size", 10**7),
    ("max_position_embeddings", 10**7),
]
CONFIG = {
    **{f"{n} {v!r}": config(**{n: v}) for n in _SIZES for v in _NO_SIZES if (n, v) not in _HARMLESS},
    # Transformers 5 writes rope_theta into rope_parameters
    **{f"{n} {v!r}": config(**{n: v}, rope_parameters=None) for n in _REALS for v in _NO_REALS},
    **{f"{name} {value!r}": config(**{name: value}) for name in _FLAGS for value in ("false", 1, 0.0, [], {})},
    **{f"rope_scaling {value!r}": config(rope_scaling=value) for value in ("yarn", ["a"], 8, {"type": "yarn"})},
    **{
        f"rope_parameters with {value!r}": config(rope_parameters=value)
        for value in (
            {"rope_theta": None},
            {"rope_theta": float("nan")},
            {"rope_theta": "1e4"},
            {"rope_type": None},
            {"rope_type": ["default"]},
            {"full": {"rope_theta": 1e4}},
        )
    },
    **{f"model_type {value!r}": config(model_type=value) for value in (None, 3, ["qwen3_moe"], {}, "../llama", "")},
    **{f"architectures {value!r}": config(architectures=value) for value in ("Qwen3MoeForCausalLM", 3, {"a": 1}, [3])},
    "heads that do not divide": config(num_key_value_heads=3),
    "more chosen experts than there are": config(num_experts_per_tok=7),
    "an odd head": config(head_dim=5),
    "no head_dim and a rest": config(head_dim=..., num_attention_heads=6, num_key_value_heads=6),
    "layers without end": config(num_hidden_layers=10**7, num_experts=10**7),
    "no vocab_size": config(vocab_size=...),
    "no num_hidden_layers": config(num_hidden_layers=...),
    "no num_experts": config(num_experts=..., num_local_experts=None),
}
INDICES = {
    **{f"weight_map {value!r}": index(value) for value in (None, [], {}, "a", 3, ["a"])},
    **{
        f"file name {value!r}": placed_in(value)
        for value in (
            "../x.safetensors",
            "/etc/passwd",
            "",
            ".",
            "..",
            3,
            None,
            ["a"],
            {},
            "a\0b",
            "nowhere.safetensors",
        )
    },
    "a file outside": outside,
}
HEADERS = {
    **{f"dtype {v!r}": first_entry(dtype=v) for v in ("F12", "", None, 3, ["F32"], "f32", "I32")},
    **{
        f"shape {value!r}": first_entry(shape=value)
        for value in (None, [], "16", [-1, -16], [2**63], [1.5], [True], [10**30, 0], [[16]], {}, [2**40, 2**40])
    },
    **{
        f"data_offsets {value!r}": first_entry(data_offsets=value)
        for value in (None, [], [0], [0, 1, 2], [-8, 0], [8, 0], [0, 2**63], ["0", "8"], {}, 3, [0.0, 64.0], [64, 128])
    },
    "an entry that is null": header(lambda e: e.update({next(iter(e)): None})),
    "an entry that is a list": header(lambda e: e.update({next(iter(e)): []})),
    "an entry without dtype": header(lambda e: next(iter(e.values())).pop("dtype")),
    "a tensor twice": header(_duplicate),
    "a name with a line break": header(lambda e: _rename(e, "a\nb")),
    "80,000 dimensions": first_entry(shape=[0] + [2**62] * 80_000, data_offsets=[0, 0]),
    "a name without text": header(lambda e: _rename(e, "")),
    "a tensor more": header(lambda e: e.update(more={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})),
    "a tensor less": header(lambda e: e.pop(next(iter(e))) and None),
    "a header of 2^63 bytes": lambda f: shard(f).write_bytes(struct.pack("<Q", 2**63) + shard(f).read_bytes()[8:]),
    "a header of 0 bytes": lambda f: shard(f).write_bytes(bytes(8) + shard(f).read_bytes()[8:]),
    "a file of 7 bytes": lambda f: shard(f).write_bytes(bytes(7)),
    "a header alone": lambda f: shard(f).write_bytes(shard(f).read_bytes()[:200]),
    "a byte too many": lambda f: shard(f).write_bytes(shard(f).read_bytes() + b"a"),
    "a byte too few": lambda f: shard(f).write_bytes(shard(f).read_bytes()[:-1]),
    "a missing file": lambda f: shard(f).unlink(),
    "a nested header": header(lambda e: NESTED),
    "a header in UTF-16": header(lambda e: json.dumps(e).encode("utf-16")),
    "a header after a byte order mark": header(lambda e: b"\xef\xbb\xbf" + json.dumps(e).encode()),
}
ALL: dict[str, Damage] = {**SPECIAL, **CONTENT, **CONFIG, **INDICES, **HEADERS}


# ------------------------------------------------------------------ torch_dist


def metadata(edit: Callable[[Any], Any]) -> Damage:
    """Edits the unpickled `.metadata`."""

    def damage(folder: Path) -> None:
        content = pickle.loads((folder / ".metadata").read_bytes())
        edit(content)
        (folder / ".metadata").write_bytes(pickle.dumps(content))

    return damage


NORM = "decoder.final_layernorm.weight"
QKV = "decoder.layers.self_attention.linear_qkv.weight"


def tensor(key: str, **values: Any) -> Damage:
    return metadata(lambda content: vars(content.state_dict_metadata[key]).update(values))


def place(key: str, **values: Any) -> Damage:
    def edit(content: Any) -> None:
        for found, info in content.storage_data.items():
            if found.fqn == key:
                vars(info).update(values)

    return metadata(edit)


def _second_on_first(content: Any) -> None:
    """Makes two pieces of a stacked tensor overlap, so that the rest of the tensor is nowhere."""
    chunks = content.state_dict_metadata[QKV].chunks
    info = content.storage_data.pop(MetadataIndex(QKV, chunks[1].offsets))
    del chunks[1]
    chunks.append(ChunkStorageMetadata(torch.Size([1, 36, 16]), torch.Size([1, 60, 16])))
    chunks[0] = ChunkStorageMetadata(chunks[0].offsets, chunks[0].sizes)
    content.storage_data[MetadataIndex(QKV, chunks[-1].offsets)] = info


_INDEX, _BACKEND = ".metadata", "metadata.json"
MEGATRON: dict[str, Damage] = {
    **{
        f"{n} is a {kind}": special(n, m)
        for n in (_INDEX, _BACKEND, "config.json", "__0_0.distcp", "tokenizer.json")
        for kind, m in _SPECIAL.items()
        if (n, m) not in ((_BACKEND, loop), (_BACKEND, nothing))  # torch alone writes no such file
    },
    **{
        f"{name} is {what}": raw(name, content)
        for name in (_INDEX, _BACKEND, "config.json", "__0_0.distcp")
        for what, content in {
            "empty": b"",
            "zeros": bytes(100),
            "nested": NESTED,
            "not UTF-8": b"\xff",
            "null": b"null",
            "a list": b"[]",
        }.items()
    },
    **{
        f"sharded_backend {v!r}": raw(_BACKEND, json.dumps({"sharded_backend": v}).encode())
        for v in (None, 3, [], "zarr")
    },
    ".metadata is another pickle": raw(_INDEX, pickle.dumps({"a": 1})),
    ".metadata is cut": lambda f: (f / _INDEX).write_bytes((f / _INDEX).read_bytes()[:-50]),
    ".metadata of no tensors": metadata(lambda c: c.state_dict_metadata.clear()),
    ".metadata of no places": metadata(lambda c: c.storage_data.clear()),
    ".metadata that is null": metadata(lambda c: vars(c).update(state_dict_metadata=None)),
    ".metadata that is nested": raw(_INDEX, b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
    **{f"a tensor of {v!r}": tensor(NORM, size=v) for v in ((), (16, 1), (17,))},
    **{f"a tensor of dtype {v!r}": tensor(NORM, properties=TensorProperties(dtype=v)) for v in (torch.int8,)},
    **{f"a tensor of pieces {v!r}": tensor(NORM, chunks=v) for v in (None, [], [None], 3)},
    **{f"a piece in {v!r}": place(NORM, relative_path=v) for v in ("", "..", "/dev/zero", "nowhere")},
    "a record beyond the end": place(NORM, offset=10**18),
    "pieces that overlap": metadata(_second_on_first),
    **{name: found for name, found in CONFIG.items() if not name.startswith(("heads that do not divide",))},
}
