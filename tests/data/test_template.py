from typing import Any

import pytest

from megatron_sspo.data.row import Row
from megatron_sspo.data.template import THINK_ANSWER_INSTRUCTION, check_template, render
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.errors import UserError
from megatron_sspo.reward.format import format_reward
from tests.data.char_tokenizer import char_tokenizer

ROW = Row(id="x:1", question="1+{1}?", answer="2")
BAD_TEMPLATES = ("{query}", "{question} {answer}", "{question!r}", "{question", "Q:")
CHAT = Row(id="x:2", question=[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], answer="2")


def text(row: Row, tokenizer: Any, template: str = "chat", system: str = "") -> str:
    check_template(tokenizer, template, system)
    return render(row, tokenizer, template, system)[1]


@pytest.mark.parametrize(
    ("row", "template", "system", "expected"),
    [
        (ROW, "chat", "", "<s>[user]1+{1}?\n[assistant]"),
        (ROW, "chat", "Sys", "<s>[system]Sys\n[user]1+{1}?\n[assistant]"),
        (CHAT, "chat", "", "<s>[system]S\n[user]Q\n[assistant]"),
        (CHAT, "chat", "Sys", "<s>[system]S\n[user]Q\n[assistant]"),
        (ROW, "{question}", "", "1+{1}?"),
        (ROW, "{{Q}}: {question}\nA: ", "", "{Q}: 1+{1}?\nA: "),
    ],
)
def test_rendered(row: Row, template: str, system: str, expected: str) -> None:
    assert text(row, char_tokenizer(), template, system) == expected


@pytest.mark.parametrize(
    ("row", "template", "system", "parts"),
    [
        *[(ROW, template, "", ["one field is {question}", "{{ or }}"]) for template in BAD_TEMPLATES],
        (ROW, "{question}", "Sys", ["option system"]),
        (CHAT, "{question}", "", ["x:2", "chat messages", "'chat'"]),
        (Row(id="x:3", question=[{"role": "tool", "content": ""}], answer="2"), "chat", "", ["x:3", "unknown role"]),
    ],
)
def test_invalid_templates(row, template, system, parts) -> None:
    with pytest.raises(UserError) as caught:
        text(row, char_tokenizer(), template, system)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_template_that_writes_the_date_writes_the_same_on_each_day() -> None:
    """Llama's do, and a run whose prompts change at midnight could not be resumed."""
    tokenizer = char_tokenizer(chat_template="{{ strftime_now('%d %b %Y, %H:%M') }} {{ messages[0]['content'] }}")
    assert text(ROW, tokenizer) == "26 Jul 2024, 00:00 1+{1}?"


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages + 1 }}", "{% include 'x' %}", "{{ messages[9].x }}"])
def test_a_chat_template_that_raises(template: str) -> None:
    with pytest.raises(UserError, match=r"chat template rejects x:1: .*: fix the row's messages, or the template"):
        render(ROW, char_tokenizer(chat_template=template), "chat")
    with pytest.raises(UserError, match=r"chat template of the tokenizer '.*' rejects a conversation of several turns"):
        TurnTemplate(char_tokenizer(chat_template=template))


def test_a_chat_template_that_leaves_out_a_message() -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(UserError, match="chat template leaves out of x:1 the system's message"):
        render(ROW, char_tokenizer(chat_template=template), "chat", "S")


def test_a_chat_template_may_strip_and_reads_what_else_a_message_has() -> None:
    template = "{% for m in messages %}{{ m.content.strip() }}{{ m.tool_calls }};{% endfor %}"
    question = [{"role": "user", "content": " Q "}, {"role": "assistant", "content": "", "tool_calls": [1]}]
    row = Row(id="x:4", question=[*question, {"role": "tool", "content": "R"}], answer="2")
    assert text(row, char_tokenizer(chat_template=template)) == "Q;[1];R;"


def test_a_tokenizer_without_a_chat_template() -> None:
    with pytest.raises(UserError, match="no chat template"):
        text(ROW, char_tokenizer(chat_template=None))


def test_the_instruction_describes_the_format_of_the_reward() -> None:
    shown = THINK_ANSWER_INSTRUCTION.partition("like this: ")[2]
    assert format_reward(shown) == 1.0
