"""Compares the books of rehearsed ranks with those of real processes in the same layouts."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_sspo.rehearsal.books import Books
from megatron_sspo.rehearsal.recorder import Recorder, route_of
from tests.policy.launcher import launch
from tests.rehearsal import rehearsed_layouts
from tests.rehearsal.rehearsed_layouts import LAYOUTS, WORLD

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(layout, rank) -> the books of the rehearsal, and of the real process."""
    results = tmp_path_factory.mktemp("books")
    script = Path(rehearsed_layouts.__file__)
    launch(script, 1, "fake", results, seconds=400)
    launch(script, WORLD, "real", results, 0.001, *LAYOUTS, seconds=400)

    def read(layout: str, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
        fake, real = (json.loads((results / f"{layout} {rank} {kind}.json").read_text()) for kind in ("fake", "real"))
        return fake, real

    def agree(layout: str, rank: int) -> bool:
        fake, real = read(layout, rank)
        return all(fake["peaks"][part] == real["peaks"][part] for part in ("old_log_probs", "update"))

    # on a loaded machine gloo's threads may be kept waiting for longer: such layouts are measured again, more slowly
    whole = [layout for layout, rehearsed in LAYOUTS.items() if rehearsed.parallel.pipeline == 1]
    if again := [layout for layout in whole if not all(agree(layout, rank) for rank in range(WORLD))]:
        launch(script, WORLD, "real", results, 0.02, *again, seconds=400)
    return read


def collectives(found: dict[str, Any]) -> dict[tuple, tuple[int, int]]:
    """Returns (phase, kind, group, ranks) -> (calls, bytes)."""
    return {
        (row["phase"], row["kind"], row["group"], tuple(row["ranks"])): (row["calls"], row["bytes"])
        for row in found["collectives"]
    }


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_collectives_are_those_of_a_real_process(books: Any, layout: str, rank: int) -> None:
    fake, real = books(layout, rank)
    assert collectives(fake) == collectives(real)
    kinds = {kind for phase, kind, _, _ in collectives(real) if phase not in ("gather", "checkpoint")}
    parallel = LAYOUTS[layout].parallel
    assert ("all_to_all" in kinds) == (parallel.expert > 1)
    assert ("send" in kinds or "recv" in kinds) == (parallel.pipeline > 1)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all", "all_reduce"])
def test_a_collective_that_is_left_out_of_the_books_is_a_difference(books: Any, monkeypatch: Any, kind: str) -> None:
    """Leaves out one call of many."""
    layout, send, left_out = "DP4 EP2 recompute", Books.send, []

    def forget_one(self: Books, found: str, *rest: Any) -> None:
        if found == kind and not left_out:
            left_out.append(found)
            return
        send(self, found, *rest)

    monkeypatch.setattr(Books, "send", forget_one)
    fake = rehearsed_layouts.rehearse(LAYOUTS[layout], 0)
    assert left_out == [kind]
    fake = json.loads(json.dumps(fake))
    assert collectives(fake) != collectives(books(layout, 0)[1])


def test_an_unknown_collective_ends_a_rehearsal() -> None:
    operator = SimpleNamespace(namespace="c10d", _schema=SimpleNamespace(name="c10d::of_tomorrow_"))
    recorder = Recorder(Books(), 0, route_of(1))
    with pytest.raises(NotImplementedError, match="does not know the collective c10d::of_tomorrow_"):
        recorder.__torch_dispatch__(operator, ())


@pytest.mark.parametrize("layout", [name for name, each in LAYOUTS.items() if each.parallel.pipeline == 1])
def test_ranks_write_equal_shares_of_a_checkpoint(books: Any, layout: str) -> None:
    """Adam's moments, float32 weights and the weights themselves; the largest parameter is the embedding."""
    rehearsed = LAYOUTS[layout]
    written = [books(layout, rank)[1]["written"] for rank in range(WORLD)]
    largest = rehearsed.config["vocab_size"] * rehearsed.config["hidden_size"] * 16
    assert max(written) <= sum(written) / WORLD + largest


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_flops_are_those_of_a_real_process(books: Any, layout: str, rank: int) -> None:
    fake, real = books(layout, rank)
    assert fake["flops"] == real["flops"]
    for phase in ("forward", "backward", "step"):  # a scalar that is made in another way is a few bytes
        assert fake["memory_traffic"][phase] == pytest.approx(real["memory_traffic"][phase], rel=0.01)


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_is_that_of_a_real_process(books: Any, layout: str, rank: int) -> None:
    fake, real = books(layout, rank)
    assert fake["resident"] == real["resident"]
    rehearsed = LAYOUTS[layout]
    # on the host, where gloo frees a gathered tensor at a moment of its own
    checkpoints = [sum(found["peaks"].pop("checkpoint").values()) for found in (fake, real)]
    assert checkpoints[0] == pytest.approx(checkpoints[1], rel=0.02)
    # the numbers from which the gradient's norm is computed, which torch allocates differently for fake tensors
    numbers = [found["peaks"]["step"].pop("optimizer_step") for found in (fake, real)]
    assert numbers[0] == pytest.approx(numbers[1], abs=8)
    assert fake["written"] == real["written"]
    if rehearsed.parallel.pipeline == 1:
        assert fake["peaks"] == real["peaks"]
        return
    # gloo may still hold messages to the next stage that it has sent
    itemsize = 2 if rehearsed.dtype == "bfloat16" else 4
    messages = 4 * rehearsed.run.tokens_per_microbatch * rehearsed.config["hidden_size"] * itemsize
    for part, found in fake["peaks"].items():
        assert 0 <= sum(real["peaks"][part].values()) - sum(found.values()) <= messages


@pytest.mark.parametrize("rank", range(WORLD))
def test_nothing_is_left_of_recomputed_layers_after_the_backward_pass(books: Any, rank: int) -> None:
    _, real = books("DP4 EP2 recompute", rank)
    left = real["peaks"]["step"].get("activations", 0)
    assert left < 0.05 * real["peaks"]["update"]["activations"]
