import dataclasses
from pathlib import Path

import pytest

from megatron_sspo.data.decontamination import decontaminate
from megatron_sspo.data.open import load_rows, prompt_stream
from megatron_sspo.data.row import Dropped, Row
from megatron_sspo.errors import UserError
from megatron_sspo.run import Prompts
from tests.data.char_tokenizer import char_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
LONG = "A farmer has 12 cows and 30 sheep and sells 5 of the cows at the market on Monday. How many animals are left?"

LONGER = (
    f"{LONG} His daughter buys a horse and two dogs from a neighbour who lives across the river, near the old mill."
)


def row(question, id: str = "train:1") -> Row:
    return Row(id=id, question=question, answer="1")


def is_dropped(question: str, held_out: str) -> bool:
    (found,) = decontaminate([row(question)], [row(held_out, "test:7")])
    if isinstance(found, Dropped):
        assert "test:7" in found.detail and found.reason == "repeats an evaluation question"
    return isinstance(found, Dropped)


@pytest.mark.parametrize(
    ("question", "held_out"),
    [
        ("What is 1+1?", "what is 1 + 1 ?"),
        (r"Find $\dfrac{1}{2} + x$.", r"Find \(\frac{1}{2}+x\)"),
        (r"Let $\left( a, b \right)$ be", r"Let $(a,b)$ be"),
        (r"$f\,(x)$ is $1{,}000$", "$f(x)$ is $1000$"),
        (r"in \text{cm}", "in cm"),
        ("What is 5 − 3?", "What is 5 - 3?"),
        ("See figure~1; what is it?", "See figure 1, what is it?"),
        (LONG, LONG.replace("How many", "Now how many")),
        (LONGER, LONGER.replace("farmer", "peasant")),
        (LONG, LONG.replace("farmer", "Farmer,").replace("on Monday", "on a Monday")),
    ],
)
def test_the_same_question_is_dropped(question: str, held_out: str) -> None:
    assert is_dropped(question, held_out)
    assert is_dropped(held_out, question)


@pytest.mark.parametrize(
    ("question", "held_out"),
    [
        ("What is 1+1?", "What is 1-1?"),
        ("What is 1+1?", "What is 11?"),
        (r"Compute $\frac{1}{23}$.", r"Compute $\frac{12}{3}$."),
        ("What is 3 4/5 + 1?", "What is 34/5 + 1?"),
        ("What is .5 + 1?", "What is 5 + 1?"),
        ("What is 12 × 4?", "What is 12 ÷ 4?"),
        ("Find A ∪ B.", "Find A ∩ B."),
        ("What is 20% of 5?", "What is 20 of 5?"),
        ("Find x with x > 3", "Find x with x < 3"),
        (LONG, LONG.replace("12", "13")),
        (LONGER, LONGER.replace("12", "13")),
        (LONG, LONG.replace("cows", "hens").replace("market", "fair").replace("animals", "heads")),
        ("Find the sum.", "Find the sum of all."),
    ],
)
def test_another_question_is_kept(question: str, held_out: str) -> None:
    assert not is_dropped(question, held_out)


def test_evaluation_questions_are_removed_from_the_training_fixtures() -> None:
    held_out = load_rows("gsm8k", {"path": FIXTURES / "gsm8k", "split": "test"})
    held_out += load_rows("math-500", {"path": FIXTURES / "math_500"})
    sets = {name: {"options": {"path": str(FIXTURES / name)}} for name in ("gsm8k", "deepmath_103k")}
    found = decontaminate(load_rows("mixture", {"sets": sets}), held_out)
    assert [r.id for r in found if isinstance(r, Dropped)] == ["gsm8k/train.jsonl:3", "deepmath_103k/train.jsonl:3"]


def test_prompts_without_other_prompts() -> None:
    path = FIXTURES / "gsm8k"
    test = Prompts(source="gsm8k", options={"path": str(path), "split": "test"}, template="{question}")
    train = Prompts(source="gsm8k", options={"path": str(path)}, template="{question}", without=(test,))
    tokenizer = char_tokenizer()
    stream = prompt_stream(train, tokenizer, seed=0, shuffle=True)
    assert [dropped.id for dropped in stream.dropped] == ["train.jsonl:3"]
    assert {prompt.id for prompt in stream.prompts} == {"train.jsonl:1", "train.jsonl:2"}
    short = dataclasses.replace(train, max_tokens=78, overlong="drop")
    reasons = [dropped.reason for dropped in prompt_stream(short, tokenizer, seed=0, shuffle=True).dropped]
    assert reasons == ["repeats an evaluation question", "has more than 78 tokens"]
    with pytest.raises(UserError, match=r"all are dropped \(2: repeats an evaluation question"):
        prompt_stream(dataclasses.replace(test, without=(test,)), tokenizer, seed=0, shuffle=False)
