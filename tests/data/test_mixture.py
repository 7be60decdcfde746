import json
from collections import Counter
from pathlib import Path

import pytest

from megatron_sspo.data.row import Row
from megatron_sspo.data.sources import mixture
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from tests.data.char_tokenizer import char_tokenizer

TOKENIZER = char_tokenizer()


def write(path: Path, size: int) -> str:
    lines = [json.dumps({"question": f"{n}+{size}=", "answer": str(n + size)}) for n in range(size)]
    path.write_text("\n".join(lines))
    return str(path)


def mixed(tmp_path: Path, **weights: float) -> list[Row]:
    sets: dict = {name: {"source": write(tmp_path / f"{name}.jsonl", n)} for name, n in (("small", 3), ("large", 20))}
    for name, weight in weights.items():
        sets[name]["weight"] = weight
    return [row for row in mixture.rows(sets) if isinstance(row, Row)]


def stream(rows: list[Row], seed: int = 0, **options) -> PromptStream:
    options = {"max_tokens": 64, **options}
    return PromptStream(rows, TOKENIZER, template="{question}", seed=seed, **options)


def subset(id: str) -> str:
    return id.split("/")[0]


def test_without_weights_every_row_is_drawn_once_an_epoch(tmp_path) -> None:
    rows = mixed(tmp_path)
    assert [row.id for row in rows[:4]] == [*(f"small/small.jsonl:{n}" for n in (1, 2, 3)), "large/large.jsonl:1"]
    drawn = [prompt.id for prompt in stream(rows).take(46)]
    assert Counter(drawn) == {row.id: 2 for row in rows}


@pytest.mark.parametrize("seed", range(3))
def test_weights_determine_the_draws_independently_of_sizes(tmp_path, seed) -> None:
    source = stream(mixed(tmp_path, small=1, large=1), seed=seed)
    drawn = [prompt.id for prompt in source.take(23 * 40)]
    shares = Counter(map(subset, drawn))
    assert abs(shares["small"] - shares["large"]) <= 2
    for name in ("small", "large"):
        counts = Counter(id for id in drawn if subset(id) == name)
        assert max(counts.values()) - min(counts.values()) <= 1, "rows of a subset are drawn equally often"
    assert len({id for id in drawn if subset(id) == "large"}) == 20


def test_all_rows_of_a_large_set_are_drawn_before_one_repeats(tmp_path) -> None:
    source = stream(mixed(tmp_path, small=3, large=1))
    first = [prompt.id for prompt in source.take(23 * 3) if subset(prompt.id) == "large"]
    assert len(first) in (17, 18) and len(set(first)) == len(first), "no row again before all were drawn"


def test_a_weighted_stream_resumes_exactly_and_rejects_other_weights(tmp_path) -> None:
    rows = mixed(tmp_path, small=1, large=2)
    source = stream(rows)
    source.take(31)
    state = json.loads(json.dumps(source.state()))
    resumed = stream(rows)
    resumed.restore(state)
    assert [p.id for p in resumed.take(60)] == [p.id for p in source.take(60)]
    with pytest.raises(UserError, match="content="):
        stream(mixed(tmp_path, small=2, large=2)).restore(state)


@pytest.mark.parametrize(
    ("sets", "part"),
    [
        ({"gsm8k": {"wieght": 1}}, "the set 'gsm8k' of the mixture .*: its keys are source, options, weight"),
        ({"gsm8k": {"weight": 0}}, "a number above 0"),
        ({"gsm8k": {"weight": 1}, "aime24": {}}, "either every set has a weight, .* or none does .now: gsm8k."),
    ],
)
def test_invalid_mixtures(sets, part) -> None:
    with pytest.raises(UserError, match=part):
        mixture.rows(sets)


def test_equal_weights_draw_every_row_once_an_epoch() -> None:
    rows = [Row(id=str(i), question=f"{i}+{i}?", answer="1", subset=str(i), share=1.0) for i in range(49)]
    source = PromptStream(rows, char_tokenizer(), template="{question}", max_tokens=99, seed=0)
    for _ in range(3):  # in floats 1/49 · 49 < 1, and the first epoch would be empty
        assert sorted(int(prompt.id) for prompt in source.take(49)) == list(range(49))
