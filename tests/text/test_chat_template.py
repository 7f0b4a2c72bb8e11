"""Chat templates: rendered in the sandbox, with variables they read and messages they know."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from jengine.errors import RequestError
from jengine.text.chat_template import _RESERVED, render_chat
from jengine.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]
LOOP = (
    "{% for m in messages %}{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
)
STRING = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_the_tokenizers_template_is_used(byte_level: Tokenizer) -> None:
    prompt = render_chat(byte_level, HELLO)
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    ids = byte_level.encode(prompt, add_special_tokens=False)
    assert [number for number in ids if number in byte_level.special_ids] == [0, 1, 0]
    without = render_chat(byte_level, HELLO, add_generation_prompt=False)
    assert without == "<|im_start|>user\nhello<|im_end|>\n"


def test_the_callers_template_wins(byte_level: Tokenizer) -> None:
    assert render_chat(byte_level, HELLO, chat_template=STRING) == "hello"


def test_continuing_the_final_message(byte_level: Tokenizer) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Sure, "}]
    prompt = render_chat(
        byte_level, messages, add_generation_prompt=False, continue_final_message=True
    )
    assert prompt.endswith("<|im_start|>assistant\nSure, ")
    with pytest.raises(RequestError, match="both true"):
        render_chat(byte_level, messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "plain", "parts"),
    [(STRING, "hello", "a\nb"), (LOOP, "[hello]", "[a][b]"), (EITHER, "hello", "[a][b]")],
)
def test_text_parts_work_with_every_template(
    byte_level: Tokenizer, template: str, plain: str, parts: str
) -> None:
    assert render_chat(byte_level, HELLO, chat_template=template) == plain
    assert render_chat(byte_level, PARTS, chat_template=template) == parts


@pytest.mark.parametrize(
    ("wanted", "plain", "parts"),
    [("string", "hello", "a\nb"), ("openai", "[hello]", "[a][b]"), ("auto", "hello", "[a][b]")],
)
def test_the_caller_may_choose_the_form_of_contents(
    byte_level: Tokenizer, wanted: str, plain: str, parts: str
) -> None:
    options = {"chat_template": EITHER, "content_format": wanted}
    assert render_chat(byte_level, HELLO, **options) == plain
    assert render_chat(byte_level, PARTS, **options) == parts


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "at least one"),
        ("hello", "must be a list"),
        (["hello"], r"messages\[0\] is a str"),
        ([{"content": "a"}], "needs a role"),
        ([{"role": 1, "content": "a"}], "needs a role"),
        ([{"role": "user"}], "content is a NoneType"),
        ([{"role": "user", "content": 5}], "content is a int"),
        ([{"role": "user", "content": ["a"]}], r"content\[0\] is a str"),
        ([{"role": "user", "content": [{"type": "text"}]}], "needs a text"),
    ],
)
def test_malformed_messages_are_refused(
    byte_level: Tokenizer, messages: list[dict[str, object]], match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        render_chat(byte_level, messages)


@pytest.mark.parametrize("kind", [None, {}, 3])
def test_a_part_needs_a_type(byte_level: Tokenizer, kind: Any) -> None:
    messages = [{"role": "user", "content": [{"type": kind, "text": "a"}]}]
    with pytest.raises(RequestError, match="needs a type, such as 'text'"):
        render_chat(byte_level, messages)


@pytest.mark.parametrize("kind", ["image_url", "smell"])
def test_other_parts_are_named(byte_level: Tokenizer, kind: str) -> None:
    messages = [{"role": "user", "content": [{"type": kind, kind: "data:,"}]}]
    with pytest.raises(RequestError, match=f"type {kind!r}: this model reads"):
        render_chat(byte_level, messages)


def test_an_assistant_message_may_have_only_tool_calls(byte_level: Tokenizer) -> None:
    template = "{% for m in messages %}{{ m.tool_calls[0].function.name }}{% endfor %}"
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    assert render_chat(byte_level, [call], chat_template=template) == "f"


def test_variables_the_template_reads_are_passed(byte_level: Tokenizer) -> None:
    prompt = render_chat(byte_level, HELLO, chat_template_kwargs={"enable_thinking": True})
    assert "<think>" in prompt


@pytest.mark.parametrize(
    "name",
    ["tokenize", "return_tensors", "chat_template", "tools", "messages", "raise_exception"],
)
def test_arguments_of_the_renderer_are_refused(byte_level: Tokenizer, name: str) -> None:
    template = STRING + "{{ " + name + " }}"
    with pytest.raises(RequestError, match=f"may not set '{name}'"):
        render_chat(byte_level, HELLO, chat_template=template, chat_template_kwargs={name: True})


def test_every_argument_of_the_renderer_is_reserved(byte_level: Tokenizer) -> None:
    for renderer in (byte_level.hf.apply_chat_template, render_jinja_template):
        assert set(inspect.signature(renderer).parameters) <= _RESERVED


def test_the_log_says_once_what_the_template_does_not_read(
    byte_level: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Scripts set the variables of one model for all."""
    plain = render_chat(byte_level, HELLO)
    for _ in range(2):
        assert render_chat(byte_level, HELLO, chat_template_kwargs={"thinking": True}) == plain
    (line,) = caplog.messages
    assert "'thinking'" in line and "It reads: enable_thinking" in line


def test_tools_reach_templates_that_use_them(byte_level: Tokenizer) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    template = "{% if tools %}{{ tools | tojson }}{% endif %}"
    assert '"weather"' in render_chat(byte_level, HELLO, chat_template=template, tools=tools)
    assert render_chat(byte_level, HELLO, chat_template=template, tools=[]) == ""
    with pytest.raises(RequestError, match=r"tools\[0\] is a str"):
        render_chat(byte_level, HELLO, chat_template=template, tools=["weather"])


def test_tools_do_not_reach_other_templates_and_the_log_says_so_once(
    byte_level: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    template = STRING + "{# no tools #}"
    for _ in range(2):
        assert render_chat(byte_level, HELLO, chat_template=template, tools=tools) == "hello"
    (line,) = caplog.messages
    assert "does not read tools" in line


def test_a_tokenizer_without_a_template_says_what_to_do(byte_fallback: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"no chat template\. Give one as chat_template"):
        render_chat(byte_fallback, HELLO)
    assert render_chat(byte_fallback, HELLO, chat_template=STRING) == "hello"


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ raise_exception('') }}", "it raised TemplateError without a message"),
        ("{{ missing.attribute }}", "missing"),
        ("{% if %}", "not valid"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% include 'secrets' %}", "refused"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "[Rr]ange"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply|not valid"),
    ],
)
def test_errors_of_the_template_reach_the_caller(
    byte_level: Tokenizer, template: str, match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        render_chat(byte_level, HELLO, chat_template=template)


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__[1].__subclasses__()",
        "cycler.__init__.__globals__.os.popen('touch MARK').read()",
        "lipsum.__globals__['os'].system('touch MARK')",
        "namespace.__init__.__globals__['__builtins__']['open']('MARK', 'w')",
        "messages.append(1)",
        "('%c' * 3).__format__.__globals__",
        "(messages | attr('__class__')).__base__",
    ],
)
def test_templates_cannot_leave_the_sandbox(
    byte_level: Tokenizer, tmp_path: Path, expression: str
) -> None:
    mark = tmp_path / "mark"
    template = "{{ " + expression.replace("MARK", str(mark)) + " }}"
    with pytest.raises(RequestError):
        render_chat(byte_level, HELLO, chat_template=template)
    assert not mark.exists()


def test_text_of_messages_is_never_a_template(byte_level: Tokenizer) -> None:
    payload = "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}"
    assert payload in render_chat(byte_level, [{"role": "user", "content": payload}])


def test_generation_blocks_and_loop_controls_are_understood(byte_level: Tokenizer) -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% if stop_early %}{% break %}{% endif %}{% endfor %}"
    )
    options = {"chat_template": template, "chat_template_kwargs": {"stop_early": True}}
    assert render_chat(byte_level, HELLO * 2, **options) == "hello"
