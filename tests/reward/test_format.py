import pytest

from megatron_sspo.reward.format import extract_answer, format_reward


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>a</think> <answer>b</answer>", 1.0),
        ("<think>a</think><answer>b</answer>", 1.0),
        ("<think>\na\n</think>\n\n<answer>\nb\n</answer>", 1.0),
        ("\n<think>a</think> <answer>b</answer>\n", 1.0),
        ("<think></think> <answer></answer>", 1.0),
        ("<think>1 < 2 > 0</think> <answer>x</answer>", 1.0),
        # both edges, and something wrong between them
        ("<think>a</think> so <answer>b</answer>", 0.5),
        ("<think>a <answer>b</answer>", 0.5),
        ("<think>a</think> b</answer>", 0.5),
        ("<think>a</think> <think>c</think> <answer>b</answer>", 0.5),
        ("<think>a</think> <answer>b</answer> <answer>c</answer>", 0.5),
        ("<think>a <answer>b</answer> </think> <answer>c</answer>", 0.5),
        ("<think><think>a</think> <answer>b</answer>", 0.5),
        ("<think></answer>", 0.5),
        # one edge
        ("<think>a</think> <answer>b</answer> done", 0.25),
        ("<think>a</think> <answer>b", 0.25),
        ("<think>", 0.25),
        ("Well. <think>a</think> <answer>b</answer>", 0.25),
        ("a</think> <answer>b</answer>", 0.25),
        ("<answer>b</answer> </answer>", 0.25),
        ("<answer>b</answer>", 0.25),
        # neither
        ("", 0.0),
        ("42", 0.0),
        ("<answer>b</answer> <think>a</think>", 0.0),
        ("so <think>a</think> <answer>b</answer> done", 0.0),
        ("<Think>a</Think> <Answer>b</Answer>", 0.0),
        ("< think>a</think> <answer>b</answer >", 0.0),
    ],
)
def test_format_reward(response: str, expected: float) -> None:
    assert format_reward(response) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>a</think> <answer>42</answer>", "42"),
        ("<answer>\n 42 \n</answer>", "42"),
        ("<answer></answer>", ""),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer>1</answer></answer>", "1"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("</answer>1<answer>", None),
        ("<answer>1", None),
        ("<think>so <answer>1</answer></think>", None),
        ("so <answer>1</answer></think> hm", None),
        ("<think><answer>1</answer></think> <answer>2", None),
        ("<think><answer>1</answer></think> <answer>2</answer>", "2"),
        ("<answer>1</answer> <think>right</think>", "1"),
        ("1</answer>", None),
        ("42", None),
        ("", None),
    ],
)
def test_extract_answer(response: str, expected: str | None) -> None:
    assert extract_answer(response) == expected


def test_a_long_response_of_tags_takes_linear_time() -> None:
    assert format_reward("<think>" * 200_000) == 0.25
    assert extract_answer("<answer>" * 200_000) is None
    assert extract_answer("<think></think>" * 200_000) is None
