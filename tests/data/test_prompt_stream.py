import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from PIL import Image

from megatron_sspo.data.open import prompt_stream
from megatron_sspo.data.row import Row
from megatron_sspo.data.sources import arithmetic
from megatron_sspo.data.stream import PromptStream
from megatron_sspo.errors import UserError
from megatron_sspo.run import Prompts
from megatron_sspo.types import Prompt
from tests.data.char_tokenizer import char_tokenizer

TOKENIZER = char_tokenizer()


def stream(size: int = 7, seed: int = 0, **options) -> PromptStream:
    options = {"template": "{question}", "max_tokens": 64, **options}
    return PromptStream(arithmetic.rows(size), TOKENIZER, seed=seed, **options)


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.id for prompt in prompts]


def test_special_tokens_come_from_the_template_only() -> None:
    assert TOKENIZER("1")["input_ids"][0] == TOKENIZER.bos_token_id, "this tokenizer would add one"
    assert TOKENIZER.bos_token_id not in stream().prompts[0].tokens
    chat = stream(template="chat", system="Add.").prompts[0].tokens
    assert chat[0] == TOKENIZER.bos_token_id and chat.count(TOKENIZER.bos_token_id) == 1


def test_every_epoch_has_every_prompt_once_in_a_different_order() -> None:
    source = stream()
    epochs = [ids(source.take(7)) for _ in range(3)]
    assert all(sorted(epoch) == sorted(ids(source.prompts)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_size_of_takes_does_not_matter() -> None:
    whole = ids(stream().take(30))
    source = stream()
    assert [id for n in (1, 0, 6, 15, 8) for id in ids(source.take(n))] == whole


def test_without_shuffling_epochs_repeat_the_source() -> None:
    settings = Prompts(source="arithmetic", options={"size": 7}, template="{question}", max_tokens=64)
    for shuffle in (True, False):
        source = prompt_stream(replace(settings, shuffle=shuffle), TOKENIZER, seed=0, shuffle=True)
        assert (ids(source.take(17)) == (ids(source.prompts) * 3)[:17]) == (not shuffle)


@pytest.mark.parametrize("before", [0, 3, 7, 8, 14, 40])
def test_a_resumed_stream_continues_exactly(before) -> None:
    uninterrupted = stream()
    uninterrupted.take(before)
    state = json.loads(json.dumps(uninterrupted.state()))
    resumed = stream()
    resumed.take(5)
    resumed.restore(state)
    assert resumed.state() == state
    assert ids(resumed.take(25)) == ids(uninterrupted.take(25))


@pytest.mark.parametrize(
    ("other", "part"),
    [({"size": 8}, "size=8"), ({"seed": 1}, "seed=1"), ({"shuffle": False}, "shuffle=False")],
)
def test_the_state_of_another_stream_is_an_error(other, part) -> None:
    with pytest.raises(UserError, match=part):
        stream().restore(stream(**other).state())


def test_an_overlong_prompt_names_the_row_and_both_numbers() -> None:
    rows = [Row(id="a:1", question="12345", answer="1"), Row(id="a:2", question="1234567", answer="1")]
    rows.append(Row(id="a:3", question="123456789", answer="1"))
    with pytest.raises(UserError) as caught:
        PromptStream(rows, TOKENIZER, template="{question}", max_tokens=5, seed=0)
    message = str(caught.value)
    assert "a:2 has 7 tokens, more than max_tokens=5 (2 of 3" in message and "prompts.max_tokens to 9" in message
    assert len(PromptStream(rows, TOKENIZER, template="{question}", max_tokens=9, seed=0).prompts) == 3


def test_overlong_prompts_are_dropped_on_request() -> None:
    rows = [Row(id=f"a:{n}", question="1" * n, answer="1") for n in (3, 7, 5, 9)]
    source = PromptStream(rows, TOKENIZER, template="{question}", max_tokens=5, seed=0, overlong="drop")
    assert ids(source.prompts) == ["a:3", "a:5"]
    assert [(row.id, row.reason, row.detail) for row in source.dropped] == [
        ("a:7", "has more than 5 tokens", "7 tokens"),
        ("a:9", "has more than 5 tokens", "9 tokens"),
    ]
    with pytest.raises(UserError, match=r"has 4 rows, and all are dropped \(4: has more than 2 tokens\)"):
        PromptStream(rows, TOKENIZER, template="{question}", max_tokens=2, seed=0, overlong="drop")


def test_a_system_text_that_no_row_takes_is_an_error() -> None:
    own = Row(id="x:1", question=[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], answer="2")
    options = {"template": "chat", "system": "Sys", "max_tokens": 64, "seed": 0, "shuffle": False}
    PromptStream([own, replace(own, id="x:2", question="Q")], TOKENIZER, **options)
    with pytest.raises(UserError, match="x:1 and all other rows have a system message of their own"):
        PromptStream([own], TOKENIZER, **options)


def test_a_repeated_id_is_an_error() -> None:
    with pytest.raises(UserError, match=r"'a:1' occurs more than once"):
        PromptStream(
            [Row(id="a:1", question="1", answer="1")] * 2, TOKENIZER, template="{question}", max_tokens=5, seed=0
        )


def with_metadata(metadata: dict[Any, Any]) -> PromptStream:
    row = Row(id="1", question="1", answer="1", metadata=metadata)
    return PromptStream([row], TOKENIZER, template="{question}", max_tokens=5, seed=0)


@pytest.mark.parametrize(
    ("metadata", "other"),
    [
        ({"tests": ["old"]}, {"tests": ["new"]}),
        ({"limits": {3: 1}}, {"limits": {"3": 1}}),
        ({(1, 2): 0, "a": 0, None: 0}, {(1, 3): 0, "a": 0, None: 0}),
        ({"kinds": {"a", 1}}, {"kinds": {"a", 2}}),
        ({"day": date(2020, 1, 1)}, {"day": date(2020, 1, 2)}),
    ],
)
def test_rows_that_differ_in_their_metadata_alone_are_other_data(metadata, other) -> None:
    assert with_metadata(metadata).digest() != with_metadata(other).digest()
    with pytest.raises(UserError, match="content="):
        with_metadata(metadata).restore(with_metadata(other).state())


def test_metadata_are_the_same_in_another_order_and_in_another_process() -> None:
    first, second = {"a": 1, "b": {"x", "y"}, "c": object()}, {"c": object(), "b": {"y", "x"}, "a": 1}
    assert with_metadata(first).digest() == with_metadata(second).digest()
    first, second = {"image": Image.new("RGB", (1, 1))}, {"image": Image.new("RGB", (1, 1))}
    assert with_metadata(first).digest() == with_metadata(second).digest()
