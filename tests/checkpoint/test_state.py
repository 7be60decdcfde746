"""Writing the state of a run without its tensors to disk and reading it."""

import datetime
import errno
import json
import math
import os
import shutil
import struct
import threading
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_sspo.checkpoint.batches import read_batches, write_batches
from megatron_sspo.checkpoint.state import (
    State,
    begin_checkpoint,
    describe_checkpoint,
    finish_checkpoint,
    list_checkpoints,
    read_checkpoint,
)
from megatron_sspo.errors import UserError
from megatron_sspo.files.arrays import write_arrays
from megatron_sspo.files.writing import write_atomically, write_rows
from megatron_sspo.types import Prompt, Rollout, RolloutGroup
from tests.responses import response

floats = st.floats(allow_nan=True, allow_infinity=True)
texts = st.text(st.characters(exclude_categories=()))  # lone surrogates, too
tokens = st.lists(st.integers(0, 2**20), max_size=5).map(tuple)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    response = draw(tokens)
    floats32 = st.floats(width=32)
    values = st.lists(floats32, min_size=len(response), max_size=len(response)).map(tuple)
    return Rollout(
        tokens=response,
        rollout_log_probs=draw(values),
        text=draw(texts),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        policy_version=draw(st.integers(0, 10**9)),
        reward_parts=draw(st.dictionaries(st.text(), floats, max_size=3)),
        advantage=draw(floats),
        old_log_probs=draw(st.none() | values),
        reference_log_probs=draw(st.none() | values),
        routes=draw(st.none() | st.lists(st.integers(0, 255), max_size=5) | st.just([300])),
        observed=((1, len(response)),) if len(response) > 1 else (),
        transcript=draw(texts),
    )


prompts = st.builds(
    Prompt,
    id=st.text(),
    tokens=tokens,
    answer=st.text(),
    demonstration=st.text(),
)
groups = st.builds(RolloutGroup, prompt=prompts, rollouts=st.lists(rollouts(), max_size=3))


def bits(value):
    """Replaces floats by their eight bytes, so that −0.0 differs from 0.0 and NaN equals itself."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, np.ndarray):  # numbers of experts are written in the type of the largest
        return value.tobytes() if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(bits, value))
    return value


@given(groups=st.lists(st.lists(groups, max_size=2), max_size=3))
def test_batches_come_back_with_every_bit(tmp_path_factory, groups: list[list[RolloutGroup]]) -> None:
    path = tmp_path_factory.mktemp("batches") / "batches.npz"
    write_batches(path, groups)
    again = read_batches(path)
    assert [[bits(asdict(group)) for group in batch] for batch in again] == [
        [bits(asdict(group)) for group in batch] for batch in groups
    ]
    for rollout in (rollout for batch in again for group in batch for rollout in group.rollouts):
        assert not rollout.tokens.flags.writeable and not rollout.rollout_log_probs.flags.writeable


def test_metadata_of_any_kind_do_not_stop_a_checkpoint(tmp_path: Path) -> None:
    of_any_kind = {(1, 2): {3: {4}}, "day": datetime.date(2026, 1, 2), "lock": threading.Lock()}
    prompt = Prompt(id="a", tokens=(1,), answer="2", metadata=of_any_kind)
    write_batches(tmp_path / "batches.npz", [[RolloutGroup(prompt=prompt, rollouts=[])]])
    ((again,),) = read_batches(tmp_path / "batches.npz")
    assert again.prompt == replace(prompt, metadata={})


def group(prompt_id: str = "a", advantage: float = 0.1) -> RolloutGroup:
    values = {"rollout_log_probs": (-0.1, -1 / 3), "old_log_probs": (-0.2, -0.3), "reward_parts": {"answer": 1.0}}
    rollout = response((1, 2), text="x", policy_version=3, advantage=advantage, **values)
    return RolloutGroup(prompt=Prompt(id=prompt_id, tokens=(1,), answer="2"), rollouts=[rollout])


def save(folder: Path, update: int, kept: int = 2, batches=None) -> Path:
    temporary = begin_checkpoint(folder, update)
    (temporary / "trainer" / "shard").write_text(str(update))
    state = State(update=update, batches=batches or [], is_warm_started=True)
    describe_checkpoint(temporary, state, {"prompts": {"epoch": 1}, "cycles": {"m": 5}})
    return finish_checkpoint(temporary, kept=kept)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    batches = [[group("a"), group("b")], [group("c", -1 / 3)]]
    state, extra = read_checkpoint(save(tmp_path, 7, batches=batches))
    assert state == State(update=7, batches=batches, is_warm_started=True)
    assert extra == {"prompts": {"epoch": 1}, "cycles": {"m": 5}}


def test_the_newest_are_kept_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for update in (999_998, 999_999, 1_000_000, 1_000_001):
        save(tmp_path, update, kept=3)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["update-999999", "update-1000000", "update-1000001"]
    assert (tmp_path / "update-1000001" / "trainer" / "shard").read_text() == "1000001"
    save(tmp_path, 1_000_001, kept=3)
    assert len(list_checkpoints(tmp_path)) == 3, "the same update again replaces"


def test_an_unfinished_checkpoint_is_no_checkpoint_and_is_made_anew(tmp_path: Path) -> None:
    save(tmp_path, 1)
    left = begin_checkpoint(tmp_path, 2)
    (left / "trainer" / "half").write_text("x")
    (tmp_path / "update-000003.old").mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["update-000001"]
    assert not list((begin_checkpoint(tmp_path, 2) / "trainer").iterdir())
    assert list_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize("part", ["state.json", "batches.npz", "trainer"])
def test_a_checkpoint_that_lacks_a_part(tmp_path: Path, part: str) -> None:
    path = save(tmp_path, 1, batches=[[group()]])
    shutil.rmtree(path / part) if part == "trainer" else (path / part).unlink()
    with pytest.raises(UserError, match=rf"is damaged .*{part}.*: delete that folder"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("state.json", b""),
        ("state.json", b'{"update": 1'),
        ("state.json", b"{}"),
        ("state.json", b"\xff\xfe\x00"),
        ("state.json", b'{"format": 6, "update": 1, "batch_sizes": [1], "cycles": {}}'),
        ("state.json", b'{"format": 6, "update": 1, "batch_sizes": [2]}'),
        ("batches.npz", b""),
        ("batches.npz", b"\x00\x00"),
    ],
)
def test_a_checkpoint_that_is_damaged(tmp_path: Path, part: str, content: bytes) -> None:
    path = save(tmp_path, 1, batches=[[group("a"), group("b")]])
    (path / part).write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        read_checkpoint(path, ["cycles"])


def test_a_damaged_byte_or_a_cut_in_the_batches_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 1, batches=[[group("a"), group("b")]]) / "batches.npz"
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place])
        with pytest.raises(UserError, match="is damaged"):
            read_checkpoint(path.parent)
    place = content.index(np.array([1, 2, 1, 2], dtype=np.int32).tobytes())  # the tokens of both rollouts
    path.write_bytes(content[:place] + b"\x09" + content[place + 1 :])
    with pytest.raises(UserError, match=r"is damaged .*CRC"):
        read_checkpoint(path.parent)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    path = save(tmp_path, 1, batches=[[group()]])
    np.savez(path / "batches.npz", rows=np.array([group()], dtype=object))
    with pytest.raises(UserError, match=r"is damaged .*allow_pickle=False"):
        read_checkpoint(path)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        write_arrays(path / "batches.npz", {"rows": np.array([group()], dtype=object)})


@pytest.mark.parametrize(("change", "found"), [({"format": 3}, 3), ({}, 1)])
def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, change, found) -> None:
    path = save(tmp_path, 1)
    numbers = json.loads((path / "state.json").read_text())
    del numbers["format"]
    (path / "state.json").write_text(json.dumps({**numbers, **change}))
    (path / "batches.npz").unlink()  # other formats have other files
    with pytest.raises(UserError, match=f"has format {found}, and this version of megatron_sspo reads format 6: "):
        read_checkpoint(path)


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half \ud800")
    assert path.read_text() == "new"


def test_metadata_that_json_has_no_word_for_becomes_text(tmp_path: Path) -> None:
    write_rows(tmp_path / "x", [{"day": datetime.date(2026, 1, 2)}])
    assert json.loads((tmp_path / "x").read_text()) == {"day": "2026-01-02"}


def test_what_kills_have_left_is_removed_by_the_next_checkpoint(tmp_path: Path) -> None:
    for left in (".update-000003", ".update-000003-1a2b3c4d", ".update-000002-removed-1a2b3c4d"):
        (tmp_path / left / "trainer").mkdir(parents=True)
    for left in (".update-000004", "update-000004"):
        (tmp_path / left).touch()
    path = save(tmp_path, 4)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("update", [1, 2])
def test_a_kill_while_an_old_checkpoint_is_removed_leaves_none_that_has_a_name(
    tmp_path: Path, monkeypatch, update: int
) -> None:
    save(tmp_path, update)

    def kill(folder, *_, **__):
        (folder / "state.json").unlink()
        raise KeyboardInterrupt

    temporary = begin_checkpoint(tmp_path, 2)
    monkeypatch.setattr("shutil.rmtree", kill)
    describe_checkpoint(temporary, State(update=2), {})
    with pytest.raises(KeyboardInterrupt):
        finish_checkpoint(temporary, kept=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["update-000002"]


def test_a_file_in_use_of_an_old_checkpoint_is_removed_by_the_next_one(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path, 1)

    def refuse(*_, **__):
        raise OSError(errno.EBUSY, "Device or resource busy", "x")

    with monkeypatch.context() as patch:
        patch.setattr("os.rmdir", refuse)
        path = save(tmp_path, 2, kept=1)
    assert list_checkpoints(tmp_path) == [path]
    assert [found.name for found in save(tmp_path, 3, kept=1).parent.iterdir()] == ["update-000003"]


def test_an_old_checkpoint_that_cannot_be_renamed_stops_no_later_one(tmp_path: Path, monkeypatch) -> None:
    old, rename = save(tmp_path, 1), Path.rename

    def refuse(path, target):
        if path == old:
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        assert [old, save(tmp_path, 2, kept=1)] == list_checkpoints(tmp_path)
    assert save(tmp_path, 3, kept=1).is_dir() and len(list_checkpoints(tmp_path)) == 1


def test_a_checkpoint_has_its_name_when_all_of_it_is_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    temporary = begin_checkpoint(tmp_path, 1)
    describe_checkpoint(temporary, State(update=1), {})
    (temporary / "trainer" / "common.pt").write_text("x")
    flushed = set()
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(
        "megatron_sspo.checkpoint.state.os.fsync", lambda file: (flushed.add(os.fstat(file).st_ino), fsync(file))
    )

    def check(path, target):
        if path == temporary:
            assert {found.stat().st_ino for found in (*temporary.rglob("*"), temporary)} <= flushed
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", check)
    finish_checkpoint(temporary, kept=1)


def test_a_checkpoint_of_a_run_that_kept_less(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    with pytest.raises(UserError, match=r"is damaged .*state.json has no more"):
        read_checkpoint(path, ["cycles", "more"])
