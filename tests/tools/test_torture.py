"""The harness of `make torture` detects lost or doubled responses and growing memory."""

import json
import os
import subprocess
import sys

import pytest

from tools.torture.books import audit, final_history
from tools.torture.memory import Sample, flatness
from tools.torture.processes import TOKEN, Processes

PROMPTS = [["a", "b"], ["c", "d"], ["e", "f"]]  # the prompts of each update


def line(update, prompts, attempt=1, serial=None):
    first = 1000 * attempt + 100 * update if serial is None else serial
    groups = [
        {
            "prompt": prompt,
            "rollouts": [
                {"serial": first + 10 * place + n, "content": f"{first}-{place}-{n}", "tokens": 12, "version": 0}
                for n in range(2)
            ],
        }
        for place, prompt in enumerate(prompts)
    ]
    return {"attempt": attempt, "update": update, "groups": groups}


@pytest.fixture
def check(tmp_path):
    def of(lines, metrics=(1, 2, 3), wrong=()):
        journal = tmp_path / "journal.jsonl"
        journal.write_text("".join(json.dumps(one) + "\n" for one in lines))
        journal.with_name("verdicts.jsonl").write_text(
            json.dumps({"attempt": 1, "judged": 9, "wrong": list(wrong)}) + "\n"
        )
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"update": n}) + "\n" for n in metrics))
        return audit(journal, tmp_path, PROMPTS, group_size=2, is_served=True)

    return of


def whole():
    return [line(update, prompts) for update, prompts in enumerate(PROMPTS, start=1)]


def test_an_audit_without_errors(check):
    found = check(whole())
    assert not found.errors
    assert (found.updates_lost, found.rollouts_lost, found.rollouts_doubled) == (0, 0, 0)


def test_what_was_lost_in_a_kill_and_made_again_counts_once(check):
    lines = [*whole()[:2], line(2, PROMPTS[1], attempt=2), line(3, PROMPTS[2], attempt=2)]
    found = check(lines)
    assert not found.errors
    assert found.updates_lost == 1
    assert final_history(lines)[2]["attempt"] == 2


@pytest.mark.parametrize(
    ("change", "lost", "doubled"),
    [
        (lambda lines: lines[1].update(line(2, ["c"])), 2, 0),  # a prompt skipped
        (lambda lines: lines[1].update(line(2, ["c", "a"])), 2, 2),  # one prompt drawn twice, another one skipped
        (lambda lines: lines.pop(), 4, 0),  # the last update missing
        (lambda lines: lines[2]["groups"][0]["rollouts"].pop(), 1, 0),  # a response missing
        (lambda lines: lines[2]["groups"][0]["rollouts"][0].update(serial=1100), 0, 1),  # a response of update 1 again
        (lambda lines: lines[2]["groups"][0]["rollouts"][0].update(content="1100-0-0"), 0, 1),
    ],
)
def test_an_audit_with_errors(check, change, lost, doubled):
    lines = whole()
    change(lines)
    found = check(lines)
    assert found.errors
    assert (found.rollouts_lost, found.rollouts_doubled) == (lost, doubled)


@pytest.mark.parametrize("growth", [0.0, 0.01])
def test_memory_that_grows_within_a_life_shows(growth):
    """Neither differences between attempts, nor what an attempt takes at its start and at its end, are growth."""

    def sample(n):
        attempt, update = divmod(n, 40)
        update = min(update, 36)
        size = 1e9 * (1 + 0.1 * (attempt % 2) + growth * update) if update >= 3 else 1e8
        size *= 1.3 if update == 36 else 1
        return Sample(n, "embedded", "rank 0", attempt, updates=update, age=n, resident=int(size), anonymous=int(size))

    short = [Sample(n, "embedded", "rank 0", 99, updates=n, age=n, resident=10**10, anonymous=10**10) for n in range(9)]
    (found,) = flatness([*map(sample, range(200)), *short])
    assert (found.num_processes, found.num_samples) == (5, 5 * 33)
    assert found.ratio == pytest.approx(1.0) if growth == 0 else found.ratio > 1.1


def test_a_worker_without_the_mark_is_found_by_its_process_group(tmp_path):
    """A forked worker that gives itself a title overwrites its environment."""
    worker = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'], env={})"
    with subprocess.Popen(
        [sys.executable, "-c", worker],
        env={**os.environ, TOKEN: "of-this-test"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdin is not None and leader.stdout is not None
        leader.stdout.readline()
        processes = Processes("of-this-test", tmp_path)
        assert len(processes.alive()) == 2
        leader.stdin.close()
    assert processes.alive() == []
