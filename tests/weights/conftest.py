import resource
import signal

import pytest

from megatron_sspo.weights.conversion import convert as convert_module
from megatron_sspo.weights.conversion.convert import convert
from megatron_sspo.weights.formats import model_folder
from tests.weights.tiny_checkpoints import KINDS, save


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Kind -> the folder of that tiny checkpoint. Tests must not write into it."""
    root = tmp_path_factory.mktemp("checkpoints")
    for kind in KINDS:
        save(kind, root / kind)
    return lambda kind: root / kind


@pytest.fixture
def pair(tmp_path):
    """A Hugging Face folder and the Megatron checkpoint converted from it; tests may damage both."""
    save("qwen3_moe", tmp_path / "hf", max_shard_size="20KB")
    convert(tmp_path / "hf", tmp_path / "megatron")
    return tmp_path / "hf", tmp_path / "megatron"


@pytest.fixture
def small_blocks(monkeypatch):
    """Makes all sizes by which tensors and files are cut so small that everything is cut."""
    monkeypatch.setattr(convert_module, "FILE_BYTES", 20_000)
    monkeypatch.setattr(model_folder, "PIECE_BYTES", 700)


@pytest.fixture
def small_files():
    """A limit on the size of a file, which a process meets as it meets a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
