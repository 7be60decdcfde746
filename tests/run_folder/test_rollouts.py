"""The rollouts of the newest update that a run keeps for a reader."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from megatron_sspo.run_folder.rollouts import pieces, write_examples
from megatron_sspo.types import Prompt, Rollout, RolloutGroup
from tests.responses import response


@pytest.fixture(scope="module")
def by_bytes() -> Tokenizer:
    """A tokenizer of one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    found = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found


@pytest.fixture(scope="module")
def by_words() -> Tokenizer:
    """A tokenizer whose words begin with a space, which it drops at the beginning of a text."""
    found = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "▁three": 2}, "▁one"))
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    return found


def rollout(tokens: list[int], reward: float = 0.0, **more) -> Rollout:
    return response(tokens, reward_parts={"answer": reward}, **more)


@pytest.mark.parametrize(
    ("text", "observed", "weights", "found"),
    [
        pytest.param(
            "1+2=", (), [1.0, 1.0, 0.25, 0.123456], [("1+", 1.0), ("2", 0.25), ("=", 0.1235)], id="neighbours"
        ),
        pytest.param(
            "aé🙂", (), [1.0, 0.5, 0.75, 0.9, 0.2, 0.3, 0.4], [("a", 1.0), ("é", 0.5), ("🙂", 0.2)], id="characters"
        ),
        pytest.param("abcd", ((1, 3),), [0.5, 0.75], [("a", 0.5), ("bc", None), ("d", 0.75)], id="an observation"),
        pytest.param(
            "b" * 5_000 + "e" * 300,
            (),
            [1.0] * 5_300,
            [("b" * 256, 1.0), ("\n[4,788 tokens are left out]\n", None), ("e" * 256, 1.0)],
            id="beginning and end",
        ),
    ],
)
def test_the_pieces_of_a_response(by_bytes: Tokenizer, text: str, observed, weights, found) -> None:
    assert pieces(rollout(by_bytes.encode(text).ids, observed=observed), weights, by_bytes) == found


def test_bytes_that_are_no_character_do_not_swallow_the_text_after_them(by_bytes: Tokenizer) -> None:
    half = by_bytes.encode("é").ids[:1]
    found = pieces(rollout([*half, *by_bytes.encode("ab").ids, *half]), [0.1, 0.2, 0.3, 0.4], by_bytes)
    assert "".join(text for text, _ in found) == "\ufffdab\ufffd"
    assert found[-1] == ("\ufffd", 0.4)


def test_spaces_between_words_are_kept(by_words: Tokenizer) -> None:
    assert pieces(rollout([2, 0, 1]), [0.1, 0.2, 0.3], by_words) == [("three", 0.1), (" one", 0.2), (" two", 0.3)]


def batch(by_bytes: Tokenizer, num_groups: int, size: int = 3) -> tuple[list[RolloutGroup], list]:
    """Returns groups whose rewards are 0, 1, 2, ..., and weights that tell the rollouts apart."""
    prompts = [Prompt(id=f"p{n}", tokens=tuple(by_bytes.encode(f"{n}?").ids), answer=str(n)) for n in range(num_groups)]
    groups = [
        RolloutGroup(prompt=p, rollouts=[rollout(by_bytes.encode(f"r{i}").ids, reward=float(i)) for i in range(size)])
        for p in prompts
    ]
    return groups, [(float(n), torch.tensor([n / 100, 1.0])) for n in range(num_groups * size)]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_best_and_the_worst_response_of_the_first_prompts(by_bytes: Tokenizer, tmp_path: Path) -> None:
    groups, weights = batch(by_bytes, 6)
    write_examples(tmp_path / "rollouts.jsonl", 7, groups, weights, by_bytes)
    found = rows(tmp_path / "rollouts.jsonl")
    assert [(row["id"], row["reward"]) for row in found] == [(f"p{n}", r) for n in range(4) for r in (2.0, 0.0)]
    assert [row["sequence_weight"] for row in found] == [2.0, 0.0, 5.0, 3.0, 8.0, 6.0, 11.0, 9.0]
    assert found[3] == {
        "update": 7,
        "id": "p1",
        "prompt": "1?",
        "gold": "1",
        "reward": 0.0,
        "parts": {"answer": 0.0},
        "advantage": 0.0,
        "sequence_weight": 3.0,
        "tokens": 2,
        "finish_reason": "stop",
        "pieces": [["r", 0.03], ["0", 1.0]],
    }


def test_groups_with_different_rewards_come_first(by_bytes: Tokenizer, tmp_path: Path) -> None:
    groups, weights = batch(by_bytes, 6, size=2)
    equal = [RolloutGroup(prompt=group.prompt, rollouts=[group.rollouts[0]] * 2) for group in groups[:3]]
    write_examples(tmp_path / "rollouts.jsonl", 1, [*equal, *groups[3:]], weights, by_bytes)
    found = rows(tmp_path / "rollouts.jsonl")
    assert [row["id"] for row in found[::2]] == ["p3", "p4", "p5", "p0"]
    assert [row["sequence_weight"] for row in found] == [7.0, 6.0, 9.0, 8.0, 11.0, 10.0, 0.0, 1.0]


def test_the_file_stays_small(by_bytes: Tokenizer, tmp_path: Path) -> None:
    long = [rollout(by_bytes.encode("\u0001" * 40_000).ids, reward=float(i)) for i in range(2)]
    prompt = Prompt(id="p", tokens=tuple(by_bytes.encode("?" * 30_000).ids), answer="a" * 30_000)
    groups = [RolloutGroup(prompt=prompt, rollouts=long)] * 20
    weights = [(1.0, torch.arange(40_000) / 40_000)] * 40
    write_examples(tmp_path / "rollouts.jsonl", 1, groups, weights, by_bytes)
    assert len(rows(tmp_path / "rollouts.jsonl")) == 8
    assert (tmp_path / "rollouts.jsonl").stat().st_size < 200_000
