"""Several trainer processes that send weights at once: all servers have all weights, or none serves them."""

import json
from pathlib import Path

import pytest

from tests.policy.launcher import launch
from tests.rollout import two_senders


@pytest.fixture
def synced(tmp_path):
    def of(how):
        launch(Path(two_senders.__file__), 2, how, tmp_path / "found.json", seconds=200)
        return json.loads((tmp_path / "found.json").read_text())

    return of


def test_every_server_gets_every_tensor_once_to_the_bit(synced):
    found = synced("well")
    assert [row["new_groups"] for row in found] == [True, False, False]
    for row in found:
        assert row["left"] == row["served"] == row["equal"] == [0, 1] and row["failed"] == {}
        assert row["senders"] == [0, 1] and row["observed"]


def test_a_server_that_dies_in_the_middle(synced):
    first, second, third = synced("server")
    assert first["left"] == first["served"] == [] and "connection reset" in first["failed"]["0"]
    assert not first["observed"] and first["seconds"] < 60
    for row in (second, third):  # the other server is sent all weights, in new groups
        assert row["left"] == row["served"] == row["equal"] == [1] and row["observed"]
    assert second["new_groups"] and not third["new_groups"]


def test_a_sender_that_dies_in_the_middle(synced):
    (found,) = synced("sender")
    assert found == {"broken": True, "served": [False, False]}
