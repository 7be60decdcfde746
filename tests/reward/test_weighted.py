"""Several rewards in one run: weights, the rows that each scores, and the means of their parts."""

from pathlib import Path
from typing import Any

import pytest

from megatron_sspo.errors import UserError
from megatron_sspo.reward.protocol import check_prompts, checked_score, open_reward
from megatron_sspo.reward.weighted import reward
from megatron_sspo.rollout.collect import score
from megatron_sspo.rollout.metrics import reward_metrics
from megatron_sspo.types import Prompt, Rollout, RolloutGroup
from tests.reward.stub_judge import judge

SUM = Prompt(id="math/1", tokens=(1,), answer="42", metadata={"kind": "sum"})
POEM = Prompt(id="poems/1", tokens=(1,), answer="", metadata={"kind": "poem", "level": 3})
RIGHT = "<think></think> <answer>42</answer>"
STYLE = """
class Style:
    def score(self, prompts, responses):
        return [None if prompt.metadata["kind"] == "sum" else {"short": 1.0} for prompt in prompts]
    def metrics(self):
        return {"asked": 1.0}
    def close(self):
        print("closed")
reward = Style
"""


@pytest.fixture
def style(tmp_path: Path) -> str:
    (tmp_path / "style.py").write_text(STYLE)
    return f"{tmp_path / 'style.py'}:reward"


def group(prompt: Prompt, *texts: str) -> RolloutGroup:
    rollouts = [
        Rollout(tokens=[1], rollout_log_probs=[0.0], text=text, finish_reason="stop", policy_version=0)  # pyright: ignore
        for text in texts
    ]
    return RolloutGroup(prompt=prompt, rollouts=rollouts)


def test_rewards_are_summed_over_the_rows_that_they_apply_to(style: str, capsys) -> None:
    with judge(lambda response, before: "SCORE: 5") as server:
        asked = {"url": server.url, "model": "m", "rubric": "r"}
        options = {
            "math": {"where": {"id": "math/*"}},
            "critic": {"reward": "judge", "options": asked, "weight": 0.5, "where": {"kind": "poem", "level": 3}},
            "style": {"reward": style, "weight": -2},
        }
        check_prompts(reward, [SUM, POEM], options)
        built = open_reward("weighted", options)
        groups = score(built, [group(SUM, RIGHT, "43"), group(POEM, "roses", "violets")])
        parts = [[dict(rollout.reward_parts) for rollout in each.rollouts] for each in groups]
        assert parts[0] == [{"answer": 1.0, "format": 1.0}, {"answer": 0.0, "format": 0.0}]
        assert parts[1] == [{"critic/judge": 0.25, "style/short": -2.0}] * 2
        own = built.metrics()  # pyright: ignore[reportAttributeAccessIssue]
        assert own.pop("critic/seconds") > 0 and own == {
            "critic/failed": 0.0,
            "critic/retries": 0.0,
            "style/asked": 1.0,
        }
        metrics = reward_metrics(groups, policy_version=0)
        found = {name: value for name, value in metrics.items() if name.startswith("reward/")}
        assert found == {
            "reward/mean": (2.0 + 0.0 - 1.75 * 2) / 4,
            "reward/zero_variance_groups": 0.5,
            "reward/answer": 0.5,
            "reward/format": 0.5,
            "reward/critic/judge": 0.25,
            "reward/style/short": -2.0,
        }
        built.close()
    assert capsys.readouterr().out == "closed\n"


def test_a_row_is_checked_by_the_rewards_that_score_it() -> None:
    with pytest.raises(UserError, match="'poems/1' has no gold answer"):
        check_prompts(reward, [SUM, POEM], {"math": {}})
    with pytest.raises(UserError, match="'poems/1' fits the `where` of no reward"):
        check_prompts(reward, [SUM, POEM], {"math": {"where": {"kind": "sum"}}})


def test_two_parts_of_one_name_are_refused() -> None:
    built = open_reward("weighted", {"math": {}, "again": {"reward": "math"}, "third": {"reward": "math", "weight": 2}})
    with pytest.raises(UserError, match=r"two rewards of 'weighted' give prompt 'math/1' the part 'answer'"):
        checked_score(built, [SUM], [RIGHT])
    built.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'weighted' has no rewards: name them in reward_options"),
        ({"math": 1.0}, r"'weighted': math is 1.0: it must be a dict with some of reward, a name; options"),
        ({"math": {"wieght": 1.0}}, "math is {'wieght': 1.0}: it must be"),
        ({"maths": {}}, "there is no reward named 'maths': choose one of code, codeact, judge, math, model, weighted,"),
        ({"judge": {"options": {"model": "m", "rubric": "r"}}}, "the reward 'judge' needs the option url"),
    ],
)
def test_a_member_that_cannot_be_built_is_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_reward("weighted", options)
