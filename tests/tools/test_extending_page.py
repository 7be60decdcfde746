"""The parts that docs/extending.md and docs/agents.md show pass the checks of a run."""

import re
from pathlib import Path

import pytest

from megatron_sspo.__main__ import main

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("extending.md", "agents.md"))
CODE = re.findall(r"^```python\n(# (my_\w+\.py): .*?)^```", TEXT, re.M | re.S)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes the parts into an empty folder, and goes there."""
    for text, name in CODE:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.parametrize(
    "values",
    [
        [
            *("objective=my_objective.py:objective", "advantage=my_advantage.py:ranks"),
            *("prompts.source=my_source.py:rows", 'prompts.options={"largest": 9}'),
        ],
        ["rollouts.agent=my_agent.py:TwoTries", "prompts.template=chat", "evaluation=none"],
        ["prompts.source=my_curriculum.py:rows", 'prompts.options={"size": 100}', "prompts.shuffle=false"],
        [
            "rollouts.environment=my_environment.py:environment",
            'rollouts.environment_options={"max_turns": 3}',
            "prompts.template=chat",
            "evaluation=none",
            "warm_start=none",
        ],
    ],
)
def test_parts_pass_the_checks_of_a_run(project, values, capsys) -> None:
    # the recipe names its model beside its file, which another test may have loaded by a relative path
    values = [f"model.path={ROOT / 'examples' / 'tiny_moe'}", *values]
    options = [word for value in values for word in ("--set", value)]
    assert main(["launch", str(ROOT / "examples" / "tiny_moe.py"), "--check", *options]) == 0, capsys.readouterr().err
