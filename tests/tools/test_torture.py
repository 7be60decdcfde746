"""The harness of `make torture` detects lost or doubled responses and growing memory."""

import json

import pytest

from tools.torture.books import audit, final_history

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


def test_what_was_lost_in_a_kill_and_made_again_counts_once(check):
    found = check(whole())
    assert not found.errors
    assert (found.updates_lost, found.rollouts_lost, found.rollouts_doubled) == (0, 0, 0)
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
