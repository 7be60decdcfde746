"""Writing the state of a run without its tensors to disk and reading it."""

import datetime
import json
import math
import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_sspo.checkpoint.state import (
    State,
    begin_checkpoint,
    describe_checkpoint,
    finish_checkpoint,
    from_row,
    list_checkpoints,
    read_checkpoint,
    to_row,
)
from megatron_sspo.errors import UserError
from megatron_sspo.files.writing import write_atomically, write_rows
from megatron_sspo.types import Prompt, Rollout, RolloutGroup

floats = st.floats(allow_nan=True, allow_infinity=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
tokens = st.lists(st.integers(0, 2**20), max_size=5).map(tuple)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    response = draw(tokens)
    values = st.lists(floats, min_size=len(response), max_size=len(response)).map(tuple)
    return Rollout(
        tokens=response,
        rollout_log_probs=draw(values),
        text=draw(st.text()),
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        policy_version=draw(st.integers(0, 10**9)),
        reward_parts=draw(st.dictionaries(st.text(), floats, max_size=3)),
        advantage=draw(floats),
        old_log_probs=draw(st.none() | values),
        observed=((1, len(response)),) if len(response) > 1 else (),
        transcript=draw(st.text()),
    )


prompts = st.builds(
    Prompt,
    id=st.text(),
    tokens=tokens,
    answer=st.text(),
    demonstration=st.text(),
    metadata=st.dictionaries(st.text(), json_values, max_size=3),
)
groups = st.builds(RolloutGroup, prompt=prompts, rollouts=st.lists(rollouts(), max_size=3))


def bits(value):
    """Replaces floats by their eight bytes, so that −0.0 differs from 0.0 and NaN equals itself."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(bits, value))
    return value


@given(groups)
def test_a_group_comes_back_from_json_with_every_bit(group: RolloutGroup) -> None:
    again = from_row(json.loads(json.dumps(to_row(group))))
    assert bits(to_row(again)) == bits(to_row(group))
    for old, new in zip(group.rollouts, again.rollouts, strict=True):
        assert type(new.tokens) is tuple
        assert type(new.old_log_probs) is type(old.old_log_probs)
        assert new.observed == old.observed and new.response_mask() == old.response_mask()


def group(prompt_id: str = "a", advantage: float = 0.1) -> RolloutGroup:
    rollout = Rollout(
        tokens=(1, 2),
        rollout_log_probs=(-0.1, -1 / 3),
        text="x",
        finish_reason="stop",
        policy_version=3,
        reward_parts={"answer": 1.0},
        advantage=advantage,
        old_log_probs=(-0.2, -0.3),
    )
    return RolloutGroup(prompt=Prompt(id=prompt_id, tokens=(1,), answer="2"), rollouts=[rollout])


def save(folder: Path, update: int, kept: int = 2, batches=None) -> Path:
    temporary = begin_checkpoint(folder, update)
    (temporary / "trainer" / "shard").write_text(str(update))
    state = State(update=update, batches=batches or [])
    describe_checkpoint(temporary, state, {"prompts": {"epoch": 1}, "cycles": {"m": 5}})
    return finish_checkpoint(temporary, kept=kept)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    batches = [[group("a"), group("b")], [group("c", -1 / 3)]]
    state, extra = read_checkpoint(save(tmp_path, 7, batches=batches))
    assert state == State(update=7, batches=batches)
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


@pytest.mark.parametrize("part", ["state.json", "batches.jsonl", "trainer"])
def test_a_checkpoint_that_lacks_a_part(tmp_path: Path, part: str) -> None:
    path = save(tmp_path, 1, batches=[[group()]])
    shutil.rmtree(path / part) if part == "trainer" else (path / part).unlink()
    with pytest.raises(UserError, match=rf"has no {part}: delete that folder"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("state.json", ""),
        ("state.json", '{"update": 1'),
        ("state.json", "{}"),
        ("state.json", "[]"),
        ("state.json", '{"update": 1, "batch_sizes": 5}'),
        ("batches.jsonl", ""),
        ("batches.jsonl", '{"batch": 0}\n'),
        ("batches.jsonl", "7\n"),
        ("batches.jsonl", "\x00\x00"),
        ("batches.jsonl", '{"batch": 5, "prompt": {}, "rollouts": []}\n'),
        ("batches.jsonl", "first line only"),
    ],
)
def test_a_checkpoint_that_is_damaged(tmp_path: Path, part: str, text: str) -> None:
    path = save(tmp_path, 1, batches=[[group("a"), group("b")]])
    if text == "first line only":
        text = (path / part).read_text().splitlines(keepends=True)[0]
    (path / part).write_text(text)
    with pytest.raises(UserError, match="is damaged"):
        read_checkpoint(path)


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "state.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is damaged"):
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
    for left in (".update-000003", ".update-000002-removed"):
        (tmp_path / left / "trainer").mkdir(parents=True)
    path = save(tmp_path, 4)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_none_that_has_a_name(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path, 1)

    def kill(folder, *_, **__):
        (folder / "state.json").unlink()
        raise KeyboardInterrupt

    temporary = begin_checkpoint(tmp_path, 2)
    monkeypatch.setattr("megatron_sspo.checkpoint.state.shutil.rmtree", kill)
    describe_checkpoint(temporary, State(update=2), {})
    with pytest.raises(KeyboardInterrupt):
        finish_checkpoint(temporary, kept=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["update-000002"]


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
