"""Tests of the code reward, with programs in a real sandbox."""

import threading

import pytest

from megatron_sspo.config.resolve import call_with_options, resolve
from megatron_sspo.errors import UserError
from megatron_sspo.reward.code import CodeReward, extract_program, read_checks, reward
from megatron_sspo.reward.protocol import check_prompts, checked_score
from megatron_sspo.types import Prompt
from sspo_sandbox.pool import SandboxPool
from sspo_sandbox.types import Limits, SandboxBroken


def prompt(id: str = "x.jsonl:1", answer: str = "-", **metadata) -> Prompt:
    return Prompt(id=id, tokens=(1,), answer=answer, metadata=metadata)


def block(program: str) -> str:
    return f"```python\n{program}\n```"


def respond(program: str) -> str:
    return f"<think>hm</think> <answer>{block(program)}</answer>"


@pytest.fixture(scope="module")
def judge():
    built = reward(limits={"wall_seconds": 5.0, "processes": 20})
    yield built
    built.close()
    built.close()


def cases(last: str) -> Prompt:
    return prompt(cases=[{"stdin": "2\n", "stdout": "4\n"}, {"stdin": "3", "stdout": last}])


SQUARE = prompt(tests=["assert f(2) == 4", "assert f(-3) == 9"])


@pytest.mark.parametrize(
    ("prompt", "program", "expected"),
    [
        (SQUARE, "def f(x): return x * x", 1.0),
        (SQUARE, "def f(x): return x + x", 0.0),
        (SQUARE, "import os\nos._exit(0)", 0.0),
        (prompt(tests="assert f(2) == 4\nassert f(3) == 9"), "def f(x): return x * x", 1.0),
        (cases("9"), "x = int(input())\nprint(x * x)", 1.0),
        (cases("8"), "x = int(input())\nprint(x * x)", 0.0),
        (prompt(tests=["assert f() == 1"], cases=[{"stdin": "", "stdout": "x"}]), "def f(): return 1\nprint('x')", 1.0),
        (prompt(tests=["assert f() == 1"], cases=[{"stdin": "", "stdout": "y"}]), "def f(): return 1\nprint('x')", 0.0),
        (prompt(answer="42"), "print(6 * 7)", 1.0),
    ],
)
def test_answer(judge, prompt: Prompt, program: str, expected: float) -> None:
    assert judge.score([prompt], [respond(program)]) == [{"answer": expected, "format": 1.0}]


def test_a_batch_keeps_its_order_and_the_format_counts_by_itself(judge) -> None:
    right, wrong = "def f(x): return x * x", "def f(x): return x"
    responses = [respond(right), respond(wrong), block(right), "no program", respond(right), f"<think>{block(right)}"]
    assert judge.score([SQUARE] * 6, responses) == [
        {"answer": 1.0, "format": 1.0},
        {"answer": 0.0, "format": 1.0},
        {"answer": 1.0, "format": 0.0},
        {"answer": 0.0, "format": 0.0},
        {"answer": 1.0, "format": 1.0},
        {"answer": 1.0, "format": 0.25},
    ]
    assert judge.score([], []) == []
    with pytest.raises(ValueError):
        judge.score([SQUARE] * 2, responses)


def test_the_reasons_of_failures_are_counted(judge) -> None:
    judge.metrics()
    programs = ["def f(x): return x * x", "def f(x): return x", "while True: pass", "1 / 0", "x = 1 #" + "x" * 200_000]
    judge.score([SQUARE] * 8, [*map(respond, programs), "nothing", respond(programs[0]), "```python\ndef f("])
    metrics = judge.metrics()
    shares = {name: value for name, value in metrics.items() if not name.startswith("code/seconds")}
    assert shares == {
        "code/passed": 0.25,
        "code/failed": 0.125,
        "code/time": 0.125,
        "code/error": 0.125,
        "code/too_long": 0.125,
        "code/no_program": 0.25,
    }
    assert 0 < metrics["code/seconds/median"] <= metrics["code/seconds/p95"]
    assert judge.metrics() == {}


@pytest.mark.parametrize(
    ("response", "program"),
    [
        (block("x = 1"), "x = 1\n"),
        ("```py\nx\n```", "x\n"),
        ("``` Python3 \nx\n```", "x\n"),
        ("```python\r\nx\r\n```", "x\r\n"),
        ("```python title=x\nx\n```", "x\n"),
        ("```python {.numberLines}\nx\n```", "x\n"),
        ("Write ```python like this:\n```python\nx\n```", "x\n"),
        ("1. First:\n   ```python\n   if x:\n     y\n   ```", "if x:\n  y\n"),
        ("Run ```python\n  x\n```", "  x\n"),
        (block("a") + "\ntext\n" + block("b"), "b\n"),
        (block("a") + "\n```\noutput\n```", "a\n"),
        (block("a") + "\n```python\nb", "a\n"),
        (f"{block('draft')} <answer>{block('final')}</answer>", "final\n"),
        (f"<answer>{block('final')}</answer> {block('after')}", "final\n"),
        (f"{block('draft')} <answer>42</answer>", None),
        ("```\nx\n```", None),
        ("```javascript\nx\n```", None),
        ("```python\nx", None),
        ("x = 1", None),
        ("", None),
    ],
)
def test_the_last_block_of_the_answer_is_the_program(response: str, program: str | None) -> None:
    assert extract_program(response) == program


def test_a_long_response_of_fences_takes_linear_time() -> None:
    assert extract_program("```python\n" * 100_000) is not None
    for part in ("```python ", "opens ```python\n", "```python a="):
        assert extract_program(part * 100_000) is None
    for start, end in (("```python", ""), ("```python a=", "`"), ("```python", "x")):
        assert extract_program(start + " " * 100_000 + end) is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tests": ["assert f( == 1"]}, "a test is not Python"),
        ({"tests": ["assert " + "-" * 100_000 + "f()"]}, "a test is not Python"),
        ({"tests": [1]}, "a test is of type int"),
        ({"tests": {"input": ["1"], "output": ["2"]}}, "tests is of type dict: it must be a list"),
        ({"tests": ["assert f() == 1", "# nothing"]}, "a test is empty"),
        ({"cases": [{"stdin": "1"}]}, "a case must be an object"),
    ],
)
def test_a_row_with_malformed_checks_is_named(metadata, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_checks(prompt(id="code.jsonl:7", **metadata))
    assert "'code.jsonl:7'" in str(caught.value)


def ask(build, prompts: list[Prompt]) -> str:
    try:
        check_prompts(build, prompts)
    except UserError as error:
        return str(error)
    return ""


def test_rows_are_checked_before_a_run_by_the_rewards_that_execute_code() -> None:
    prompts = [prompt(id="sound", tests=["assert f() == 1"]), prompt(id="broken", tests=["assert f( == 1"])]
    for name, expected in (("code", "'broken': a test is not Python"), ("codeact", "'broken'"), ("math", "")):
        build = resolve("reward", name, "reward")
        assert expected in ask(build, prompts) and bool(expected) == bool(ask(build, prompts))
        assert ask(build, prompts[:1]) == ""


def test_rows_whose_tests_pass_for_a_program_that_does_nothing_are_named(judge) -> None:
    loop = "for got, want in zip(f(3), [0, 1, 4]):\n  assert got == want"
    rows = {
        "sound": "assert f(2) == 4",
        "loop": loop,
        "argument": "xs = [3, 1]\nassert f(xs) == sorted(xs)",
        "raises": "try:\n  f(-1)\nexcept KeyError: pass\nelse: assert False",
        "idle": "s = Stack()\ns.push(1)",
        "hangs": "while f(2) != 4: pass",
        "defines": "def check(candidate):\n  assert candidate(2) == 4",  # as HumanEval has it, and nothing calls it
    }
    prompts = [prompt(id=name, tests=[test]) for name, test in rows.items()]
    begins, found = judge.remarks([*prompts, prompt(answer="42")])
    assert begins.startswith("trying the tests of 7 rows")
    assert (
        "tests of 5 of the 7 rows pass" in found
        and "defines (" in found
        and "sound" not in found
        and "hangs" not in found
    )
    assert "loop (return '')" in found and "argument (empty the first argument and return [])" in found
    assert "raises (raise every exception)" in found and "idle (return an object whose methods do nothing)" in found
    assert len(list(judge.remarks(prompts[:1]))) == 1 and not list(judge.remarks([prompt(answer="42")]))


def test_scores_from_a_thread_and_equal_ones_are_run_once(judge) -> None:
    judge.metrics()
    scores: list[dict[str, float]] = []
    answer = respond("import random\ndef f(x): return x * x")
    thread = threading.Thread(target=lambda: scores.extend(checked_score(judge, [SQUARE] * 50, [answer] * 50)))
    thread.start()
    thread.join(120)
    assert scores == [{"answer": 1.0, "format": 1.0}] * 50
    assert len(judge._pool._latencies) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"seconds": 1}}, "no option seconds"),
        ({"url": "http://127.0.0.1:1"}, "MEGATRON_SSPO_SANDBOX_KEY"),
        pytest.param({"packages": ["no-such-thing"]}, "is not installed", marks=pytest.mark.bubblewrap),
    ],
)
def test_an_invalid_option_is_refused(options, message: str, monkeypatch) -> None:
    monkeypatch.delenv("MEGATRON_SSPO_SANDBOX_KEY", raising=False)
    with pytest.raises(UserError, match=message):
        call_with_options(reward, options, "the reward 'code'")


def test_without_a_sandbox_there_is_no_reward(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        reward()


def test_inputs_that_the_limits_exclude_are_no_fault_of_the_programs(judge) -> None:
    stdin = "x" * (judge._pool.limits.disk_bytes + 1)
    with pytest.raises(UserError, match=r"'x.jsonl:1': the inputs of its cases need 67,108,865 bytes .* disk_bytes"):
        judge.score([prompt(cases=[{"stdin": stdin, "stdout": "x"}])], [respond("print(input()[0])")])
    with pytest.raises(UserError, match="memory_bytes"):
        judge.score([prompt(cases=[{"stdin": stdin[1:], "stdout": "x"}] * 9)], [respond("print(input()[0])")])


def test_a_broken_sandbox_ends_the_run_with_one_sentence() -> None:
    class Broken:
        limits = Limits()

        def check(self, program, tests, cases):
            raise SandboxBroken("the sandbox at http://127.0.0.1:9/check: Connection refused")

        def close(self):
            pass

    made = CodeReward(SandboxPool(Broken(), 1))
    with pytest.raises(UserError, match="programs cannot be judged: the sandbox at http"):
        made.score([prompt()], [respond("print()")])
    made.close()
