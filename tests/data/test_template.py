import pytest

from megatron_sspo.data.row import Row
from megatron_sspo.data.template import THINK_ANSWER_INSTRUCTION, render
from megatron_sspo.environment.turns import TurnTemplate
from megatron_sspo.errors import UserError
from megatron_sspo.reward.format import format_reward
from tests.data.char_tokenizer import char_tokenizer

ROW = Row(id="x:1", question="1+{1}?", answer="2")
CHAT = Row(id="x:2", question=[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], answer="2")


def test_chat() -> None:
    tokenizer = char_tokenizer()
    assert render(ROW, tokenizer, "chat") == "<s>[user]1+{1}?\n[assistant]"
    assert render(ROW, tokenizer, "chat", "Sys") == "<s>[system]Sys\n[user]1+{1}?\n[assistant]"
    assert render(CHAT, tokenizer, "chat") == "<s>[system]S\n[user]Q\n[assistant]"


def test_format_string() -> None:
    tokenizer = char_tokenizer(chat_template=None)
    assert render(ROW, tokenizer, "{question}") == "1+{1}?"
    assert render(ROW, tokenizer, "{{Q}}: {question}\nA: ") == "{Q}: 1+{1}?\nA: "


@pytest.mark.parametrize(
    ("row", "template", "system", "parts"),
    [
        (ROW, "{query}", "", ["unknown field 'query'", "{question}", "{{ or }}"]),
        (ROW, "{question} {answer}", "", ["unknown field 'answer'"]),
        (ROW, "{}", "", ["unknown field ''"]),
        (ROW, "{0}", "", ["unknown field '0'"]),
        (ROW, "{question.upper}", "", ["unknown field 'question.upper'"]),
        (ROW, "{question!r}", "", ["nothing after the name"]),
        (ROW, "{question:>9}", "", ["nothing after the name"]),
        (ROW, "{question", "", ["malformed", "{{ or }}"]),
        (ROW, "}", "", ["malformed"]),
        (ROW, "Q:", "", ["has no {question}"]),
        (ROW, "{question}", "Sys", ["option system"]),
        (CHAT, "{question}", "", ["x:2", "list of chat messages", "'chat'"]),
        (CHAT, "chat", "Sys", ["x:2", "system message of its own"]),
        (
            Row(id="x:3", question=[{"role": "tool", "content": ""}], answer="2"),
            "chat",
            "",
            ["x:3", "unknown role tool"],
        ),
    ],
)
def test_invalid_templates(row, template, system, parts) -> None:
    with pytest.raises(UserError) as caught:
        render(row, char_tokenizer(), template, system)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_template_that_writes_the_date_writes_the_same_on_each_day() -> None:
    """Llama's do, and a run whose prompts change at midnight could not be resumed."""
    tokenizer = char_tokenizer(chat_template="{{ strftime_now('%d %b %Y, %H:%M') }} {{ messages[0]['content'] }}")
    assert render(ROW, tokenizer, "chat") == "26 Jul 2024, 00:00 1+{1}?"


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages + 1 }}", "{% include 'x' %}", "{{ messages[9].x }}"])
def test_a_chat_template_that_raises(template: str) -> None:
    with pytest.raises(UserError, match=r"chat template rejects x:1: .*: fix the row's messages, or the template"):
        render(ROW, char_tokenizer(chat_template=template), "chat")
    with pytest.raises(UserError, match=r"chat template of the tokenizer '.*' rejects a conversation of several turns"):
        TurnTemplate(char_tokenizer(chat_template=template))


@pytest.mark.parametrize(
    ("template", "system", "left_out"),
    [
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", "S", "1 .*'system'"),
        ("{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}", "", "1 .*'user'"),
    ],
)
def test_a_chat_template_that_leaves_out_a_message(template: str, system: str, left_out: str) -> None:
    with pytest.raises(UserError, match=f"chat template leaves out message {left_out}"):
        render(ROW, char_tokenizer(chat_template=template), "chat", system)


def test_a_chat_template_may_strip_and_reads_what_else_a_message_has() -> None:
    template = "{% for m in messages %}{{ m.content.strip() }}{{ m.tool_calls }};{% endfor %}"
    question = [{"role": "user", "content": " Q "}, {"role": "assistant", "content": "", "tool_calls": [1]}]
    row = Row(id="x:4", question=[*question, {"role": "tool", "content": "R"}], answer="2")
    assert render(row, char_tokenizer(chat_template=template), "chat") == "Q;[1];R;"


def test_a_chat_template_without_a_message_in_its_error() -> None:
    with pytest.raises(UserError, match=r"chat template rejects x:1: MemoryError: fix"):
        render(ROW, char_tokenizer(chat_template="{{ 'a' * 10 ** 17 }}"), "chat")


def test_a_tokenizer_without_a_chat_template() -> None:
    with pytest.raises(UserError, match="no chat template"):
        render(ROW, char_tokenizer(chat_template=None), "chat")


def test_the_instruction_describes_the_format_of_the_reward() -> None:
    shown = THINK_ANSWER_INSTRUCTION.partition("like this: ")[2]
    assert format_reward(shown) == 1.0


def test_half_of_a_character_in_a_call_of_a_tool() -> None:
    question = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "", "tool_calls": ["\ud800"]}]
    row = Row(id="x:5", question=[*question, {"role": "tool", "content": "R"}], answer="2")
    template = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}"
    with pytest.raises(UserError, match="x:5: the text has half of a surrogate pair"):
        render(row, char_tokenizer(chat_template=template), "chat")
