"""The message about a checkpoint that cannot be loaded."""

import os
from pathlib import Path

import pytest
import torch

from megatron_sspo.checkpoint.saving import describe_error


class CodeOnLoad:
    """An object whose unpickling would run a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_code_is_not_loaded_and_the_message_does_not_advise_to_load_it(tmp_path: Path) -> None:
    torch.save({"a": CodeOnLoad(f"touch {tmp_path / 'hacked'}")}, tmp_path / "common.pt")
    (tmp_path / "garbage.pt").write_bytes(b"garbage")
    for name in ("common.pt", "garbage.pt"):
        with pytest.raises(Exception, match="weights_only") as raised:
            torch.load(tmp_path / name)
        assert "weights_only" not in describe_error(raised.value) and "\n" not in describe_error(raised.value)
        assert "a file of it is not one of tensors, or has objects" in describe_error(raised.value)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("said", ["[enforce fail at inline_container.cc:858] . x", "basic_ios::clear: iostream error"])
def test_what_torch_says_of_a_full_disk_is_said_in_words(said: str) -> None:
    assert describe_error(RuntimeError(said)) == "a file could not be written to its end"
