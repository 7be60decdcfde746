"""Reads, compares and damages Hugging Face folders, for tests."""

import json

import torch
from safetensors.torch import load_file, save_file


def tensors(path):
    """Name -> tensor, from all files."""
    found = {}
    for file in path.glob("*.safetensors"):
        found |= load_file(file)
    return found


def assert_same_bits(first, second):
    a, b = tensors(first), tensors(second)
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype and tensor.shape == b[name].shape
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8)), name


def change(file, **updates):
    """Replaces tensors of a safetensors file; None removes one."""
    found = load_file(file) | {name.replace("__", "."): tensor for name, tensor in updates.items()}
    save_file({name: t for name, t in found.items() if t is not None}, file, metadata={"format": "pt"})


def edit_json(path, edit):
    """Changes the content of a JSON file in place by `edit(content)`."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def file_of(folder, name):
    """The file that holds a tensor."""
    return next(file for file in folder.glob("*.safetensors") if name in load_file(file))
