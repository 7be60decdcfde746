"""The arguments of `megatron-sspo evaluate`."""

import pytest

from megatron_sspo.__main__ import main
from megatron_sspo.evaluation import command


def test_answers_may_be_longer_than_a_microbatch_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(command, "evaluate_model", lambda run, *_, **__: found.append(run.rollouts.sampling.max_tokens))
    assert main(["evaluate", "model", "--set", "rollouts.sampling.max_tokens=32768"]) == 0
    assert found == [32768]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], []), (["--sets", "math-500, aime25"], ["math-500", "aime25"]), (["--sets", ","], ["", ""])],
)
def test_names_of_sets(monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: list[str]) -> None:
    """An empty name is a set that does not exist, and not the wish for all sets."""
    found = []
    monkeypatch.setattr(command, "evaluate_model", lambda *_, names, **__: found.extend(names))
    assert main(["evaluate", "model", *arguments]) == 0
    assert found == expected
