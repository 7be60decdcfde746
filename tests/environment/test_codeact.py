"""The CodeAct environment, with real interpreters in real sandboxes."""

import dataclasses
import threading
import time

import pytest

from megatron_sspo.config.resolve import call_with_options
from megatron_sspo.environment.codeact import CodeAct, environment, extract_code
from megatron_sspo.errors import UserError
from megatron_sspo.types import Prompt
from packages.sandbox.tests.conftest import LIMITS, assert_nothing_runs, processes_of, wait_until
from sspo_sandbox.sandbox import Sandbox

TASK = Prompt(id="a", tokens=(1,), answer="")


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox(LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sandbox_with_long_limits():
    made = Sandbox(dataclasses.replace(LIMITS, wall_seconds=120.0, cpu_seconds=120))
    yield made
    made.close()


@pytest.fixture
def acting(sandbox):
    made = CodeAct(sandbox, concurrency=2, max_turns=4, max_characters=100, max_episodes=8)
    yield made
    assert_nothing_runs(sandbox)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("<think> a </think> <execute> print(1) </execute>", "print(1)"),
        ("<execute>\nfor i in x:\n    print(i)\n</execute>", "for i in x:\n    print(i)"),
        ("<execute>\n  x = 1\n  if x:\n    y = 2\n</execute>", "x = 1\nif x:\n  y = 2"),
        ("<execute>\n```python\nprint(1)\n```\n</execute>", "print(1)"),
        ("<execute>print('''```''')</execute>", "print('''```''')"),
        ("<execute>a</execute> <execute>b</execute>", "b"),
        ("<execute> <execute>b</execute>", "b"),
        ("<execute>\nprint('''a\n   \nb''')\n</execute>", "print('''a\n   \nb''')"),
        ("<execute></execute>", ""),
        ("<execute>print(1)", None),
        ("```python\nprint(1)\n```", None),
        ("", None),
    ],
)
def test_extract_code(response, code):
    assert extract_code(response) == code


def test_cells_share_an_interpreter_until_the_solution(acting):
    episode = acting.open(TASK)
    assert episode.observe("<execute>x = 6</execute>") == "Observation:\n[nothing was printed]"
    assert episode.observe("<think> hm </think> <execute> x * 7 </execute>") == "Observation:\n42"
    assert episode.observe("<think> hm </think> <solution> 42 </solution>") is None
    other = acting.open(TASK)
    assert other.observe("<execute> x </execute>").endswith("NameError: name 'x' is not defined")
    for one in (episode, other):
        one.close()
        one.close()


def test_the_last_turn_has_no_observation(acting):
    episode = acting.open(TASK)
    for _ in range(3):
        assert "neither code nor a solution" in episode.observe("I think that")
    assert episode.observe("<execute>1</execute>") is None
    episode.close()


def test_a_long_observation_is_shortened_in_the_middle(acting):
    episode = acting.open(TASK)
    found = episode.observe("<execute>print('a' * 500 + 'z' * 500)</execute>")
    assert found == "Observation:\n" + "a" * 50 + "\n[900 characters left out]\n" + "z" * 50
    episode.close()


def test_an_interpreter_that_its_code_terminates_is_not_restarted(acting):
    acting.metrics()
    episode, whole = acting.open(TASK), acting.open(TASK)
    assert "the session is over" in episode.observe("<execute>import os; os._exit(3)</execute>")
    assert "the session is over" in episode.observe("<execute>1</execute>")
    assert whole.observe("<execute>1</execute>") == "Observation:\n1"
    assert acting.metrics() == {"cells_per_episode": 1.5, "sessions_ended_early": 0.5}
    assert acting.metrics() == {}
    episode.close()
    whole.close()


def test_an_episode_closed_while_its_cell_runs_leaves_no_process(acting, sandbox):
    episode = acting.open(TASK)
    found = []
    thread = threading.Thread(target=lambda: found.append(episode.observe("<execute>while True: pass</execute>")))
    thread.start()
    wait_until(lambda: processes_of(sandbox))
    time.sleep(0.1)  # the interpreter must end both while it starts and while it runs a cell
    episode.close()
    thread.join(60)
    assert len(found) == 1
    assert_nothing_runs(sandbox)


def test_an_interpreter_that_starts_after_its_episode_closed_is_stopped(acting, sandbox):
    class Late(CodeAct):
        def start(self, is_needed):
            found = super().start(is_needed)
            episode.close()
            return found

    episode = Late(sandbox, 2, 4, 100, 8).open(TASK)
    assert episode.observe("<execute>1</execute>") is None
    assert_nothing_runs(sandbox)


def test_an_episode_closed_while_waiting_for_a_slot_starts_no_interpreter(sandbox_with_long_limits):
    crowded = CodeAct(sandbox_with_long_limits, 1, 4, 100, 8)
    working, waiting = crowded.open(TASK), crowded.open(TASK)
    found = []

    def observe(episode, code):
        found.append((episode, episode.observe(f"<execute>{code}</execute>")))

    first = threading.Thread(target=observe, args=(working, "while True: pass"))
    first.start()
    wait_until(lambda: processes_of(sandbox_with_long_limits))
    second = threading.Thread(target=observe, args=(waiting, "1"))
    second.start()
    time.sleep(0.2)
    waiting.close()
    second.join(30)
    assert found == [(waiting, None)], "it waited for the other's cell"
    working.close()
    first.join(30)
    assert_nothing_runs(sandbox_with_long_limits)


def test_a_closed_sandbox_is_an_error(sandbox):
    gone = Sandbox(LIMITS)
    gone.close()
    episode = CodeAct(gone, 1, 4, 100, 8).open(TASK)
    with pytest.raises(UserError, match="no interpreter can be started for a rollout: the sandbox is closed"):
        episode.observe("<execute>1</execute>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "the option max_turns is 0"),
        ({"max_characters": 0}, "the option max_characters is 0"),
        ({"max_episodes": 0}, "the option max_episodes is 0"),
        ({"concurrency": -1}, "the option concurrency is -1"),
        ({"limits": {"wall_seconds": 0}}, "wall_seconds is 0"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(UserError, match=message):
        call_with_options(environment, options, "the environment 'codeact'")
