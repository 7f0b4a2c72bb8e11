"""Tool formats by example: one answer of each family, and what is not quite one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jengine.errors import ConfigError
from jengine.text.chat_parts import Content, ToolStart
from jengine.text.response_template import load_response_template
from tests.text.parsing import calls, content, parse, reasoning


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": arguments}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def check(text: str, name: str, expected: list[tuple[str, str]], rest: str = "") -> None:
    for pieces in (text, list(text)):
        parts = parse(pieces, tool_parser=name)
        assert calls(parts) == expected
        assert content(parts) == rest


HERMES = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo", "n": [1, {}]}}\n</tool_call>'
OSLO = '{"city": "Oslo", "n": [1, {}]}'


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        (HERMES, [("f", OSLO)], ""),
        (f"Let me see.\n{HERMES}\n{HERMES}", [("f", OSLO)] * 2, "Let me see.\n"),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a": 1}')], ""),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', [("f", "{}")], ""),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}")], ""),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", '{"a": 1}')], ""),
        ('<tool_call>{"id": {"x": "}"}, "name": "f", "arguments": {}}', [("f", "{}")], ""),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call>!', [("f", '{"a": "')], "!"),
        ('<tool_call>{"name": "f", "arguments": {"a": "cut of', [("f", '{"a": "cut of')], ""),
        ('<tool_call>{"name": "f', [], '<tool_call>{"name": "f'),
        ('<tool_call>{"name": "f"', [("f", "")], ""),
        ("<tool_call>hello</tool_call>!", [], "<tool_call>hello</tool_call>!"),
        ('<tool_call> {"a": 1} </tool_call>', [], '<tool_call> {"a": 1} </tool_call>'),
        ('<tool_call>{"name": 1, "arguments": {}}', [], '<tool_call>{"name": 1, "arguments": {}}'),
        ('<tool_call>{"name": "caf\\u00e9"}</tool_call>', [("café", "{}")], ""),
        ('<tool_call>{"name": "\\ud800x"}</tool_call>', [("\ufffdx", "{}")], ""),
    ],
)
def test_hermes(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    check(text, "hermes", expected, rest)


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')], ""),
        ('<|python_tag|>{"name": "f", "arguments": {}}', [("f", "{}")], ""),
        (
            '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}}',
            [("f", "{}"), ("g", '{"a": 1}')],
            "",
        ),
        ('{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")], ""),
        ('{"parameters": {"b": 2}, "name": "f"}', [("f", '{"b": 2}')], ""),
        ('{"name": "Ada", "age": 36}', [], '{"name": "Ada", "age": 36}'),
        ('{"a": {"name": "f", "parameters": {}}}', [], '{"a": {"name": "f", "parameters": {}}}'),
        ("if (x) { y }", [], "if (x) { y }"),
        ("<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
        ('{"name": "f", "parameters": {}}; done', [("f", "{}")], "; done"),
        ('{"name": "f", "parame', [], '{"name": "f", "parame'),
    ],
)
def test_llama3_json(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    check(text, "llama3_json", expected, rest)


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        ('[TOOL_CALLS]f[ARGS]{"a": 1}', [("f", '{"a": 1}')], ""),
        ('Hi.[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]g{}', [("f", '{"a": 1}'), ("g", "{}")], "Hi."),
        ('[TOOL_CALLS]f[CALL_ID]123[ARGS]{"a": 1}', [("f", '{"a": 1}')], ""),
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
            [("f", '{"a": 1}'), ("g", "{}")],
            "",
        ),
        ('[TOOL_CALLS][TOOL_CALLS] {"name": "f", "arguments": {}}', [("f", "{}")], ""),
        ("[TOOL_CALLS] [1]", [], "[TOOL_CALLS] [1]"),
        ("[TOOL_CALLS]cut", [], "[TOOL_CALLS]cut"),
        ("[TOOL_CALLS]no call\nat all", [], "[TOOL_CALLS]no call\nat all"),
    ],
)
def test_mistral(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    check(text, "mistral", expected, rest)


def test_mistrals_ids_are_nine_letters_or_digits() -> None:
    start = parse("[TOOL_CALLS]f[ARGS]{}", tool_parser="mistral", new_id=None)[0]
    assert isinstance(start, ToolStart)
    assert len(start.id) == 9
    assert start.id.isalnum()


V3_CALL = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
V31_CALL = '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        (f"Hi.{BEGIN}{V3_CALL}\n{V3_CALL}{END}", [("f", '{"a": 1}')] * 2, "Hi."),
        (f"{BEGIN}{V31_CALL}{V31_CALL}{END}", [("f", '{"a": 1}')] * 2, ""),
        (f"{BEGIN}<｜tool▁call▁begin｜>nothing{END}", [], "<｜tool▁call▁begin｜>nothing"),
        (f"{BEGIN}{V31_CALL[: V31_CALL.index('1')]}", [("f", '{"a": ')], ""),
    ],
)
def test_deepseek_v3(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    check(text, "deepseek_v3", expected, rest)


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        ("[f(city='Oslo', n=3)]", [("f", '{"city": "Oslo", "n": 3}')], ""),
        (
            "[f(), g(a=[1, (2.5,), {'k': None}])]",
            [("f", "{}"), ("g", '{"a": [1, [2.5], {"k": null}]}')],
            "",
        ),
        ("\n[f(a=True, b=false)]\n", [("f", '{"a": true, "b": false}')], ""),
        (
            r"""[f(a='it\'s', b="\n\x41\u00e9\d")]""",
            [("f", r'{"a": "it' + "'" + r's", "b": "\nAé\\d"}')],
            "",
        ),
        (
            "[f(a=-1, b=+2, c=1e5, d=0x10, e=.5)]",
            [("f", '{"a": -1, "b": 2, "c": 1e5, "d": 16, "e": 0.5}')],
            "",
        ),
        ("<|python_start|>[f(a=1)]<|python_end|>", [("f", '{"a": 1}')], ""),
        ("[1, 2]", [], "[1, 2]"),
        ("[f(g())]", [], "[f(g())]"),
        ("[f(a=g())]", [], "[f(a=g())]"),
        ("[f(a=1 + 2)]", [], "[f(a=1 + 2)]"),
        ("[f(a=__import__('os'))]", [], "[f(a=__import__('os'))]"),
        ("[f(a={1: 2})]", [], "[f(a={1: 2})]"),
        ("[f(a=nan)]", [], "[f(a=nan)]"),
        ("[f(a=1), g(a=oops)]", [("f", '{"a": 1}')], ", g(a=oops)]"),
        ("[f(a=1), g(a='cut", [("f", '{"a": 1}')], ", g(a='cut"),
        ("Call [f(a=1)]", [], "Call [f(a=1)]"),
        ("[]", [], "[]"),
    ],
)
def test_pythonic(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    check(text, "pythonic", expected, rest)
    for _, arguments in expected:
        json.loads(arguments)


def test_pythonic_bounds_nesting() -> None:
    deep = "[f(a=" + "[" * 1000 + "]" * 1000 + ")]"
    check(deep, "pythonic", [], deep)
    fine = "[f(a=" + "[" * 60 + "]" * 60 + ")]"
    check(fine, "pythonic", [("f", '{"a": ' + "[" * 60 + "]" * 60 + "}")])


CODER = (
    "<tool_call>\n<function=f>\n<parameter=code>\nx = 1\n\ny\n</parameter>\n"
    "<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
)
CODER_TOOLS = [
    tool("f", code={"type": "string"}, n={"type": "integer"}, on={"type": "boolean"}),
    tool("g", a={"anyOf": [{"type": "number"}, {"type": "null"}]}, o={"type": "object"}),
]


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        (f"Hi.\n{CODER}\n{CODER}", [("f", r'{"code": "x = 1\n\ny", "n": 3}')] * 2, "Hi.\n"),
        ("<function=f></function>", [("f", "{}")], ""),
        ("<function=f><parameter=n>x</parameter></function>", [("f", '{"n": "x"}')], ""),
        ("<function=f><parameter=on>True</function>", [("f", '{"on": true}')], ""),
        (
            "<function=f><parameter=on>1<parameter=n>2</function>",
            [("f", '{"on": true, "n": 2}')],
            "",
        ),
        ("<function=g><parameter=a>2.0</parameter></function>", [("g", '{"a": 2}')], ""),
        ("<function=g><parameter=a>1e999</parameter></function>", [("g", '{"a": "1e999"}')], ""),
        ("<function=g><parameter=a>null</parameter></function>", [("g", '{"a": null}')], ""),
        (
            '<function=g><parameter=o>{"a": [1]}</parameter></function>',
            [("g", '{"o": {"a": [1]}}')],
            "",
        ),
        ("<function=g><parameter=o>[1]</parameter></function>", [("g", '{"o": "[1]"}')], ""),
        ("<function=other><parameter=x>1</parameter></function>", [("other", '{"x": "1"}')], ""),
        (
            '<function=f><parameter=code>"é"</parameter></function>',
            [("f", r'{"code": "\"é\""}')],
            "",
        ),
        ("<function=f><parameter=code>cut o", [("f", '{"code": "cut o')], ""),
        ("<tool_call>no</tool_call>", [], "<tool_call>no</tool_call>"),
        ("<function=>x", [], "<function=>x"),
        ("<function=f", [], "<function=f"),
    ],
)
def test_qwen3_coder(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    for pieces in (text, list(text)):
        parts = parse(pieces, tool_parser="qwen3_coder", tools=CODER_TOOLS)
        assert calls(parts) == expected
        assert content(parts) == rest


def test_schemas_that_make_no_sense_mean_strings() -> None:
    nested: Any = {"type": "integer"}
    for _ in range(5000):
        nested = {"anyOf": [nested]}
    text = "<function=f><parameter=a>1</parameter></function>"
    for schema in (nested, None, 7, {"type": 7}, {"type": ["null", 3]}, {"anyOf": 1}, {"enum": {}}):
        parts = parse(text, tool_parser="qwen3_coder", tools=[tool("f", a=schema)])
        assert calls(parts) == [("f", '{"a": "1"}')]
    for tools in ([{}], [{"function": 1}], [{"function": {"name": "f", "parameters": 1}}]):
        assert calls(parse(text, tool_parser="qwen3_coder", tools=tools)) == [("f", '{"a": "1"}')]


def test_numbers_in_a_text_that_is_no_call_stay_as_they_are() -> None:
    assert parse("{1}", tool_parser="llama3_json") == [Content("{1}")]


GEMMA4_TOOLS = [
    tool(
        "f",
        city={"type": "string"},
        days={"type": "integer"},
        at={"type": "object", "properties": {"x": {"type": "string"}}},
        tags={"type": "array", "items": {"type": "string"}},
    )
]


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        (
            'Hi.<|tool_call>call:f{city:<|"|>Oslo<|"|>,days:3}<tool_call|><|tool_call>call:g{}<tool_call|>',
            [("f", '{"city": "Oslo", "days": 3}'), ("g", "{}")],
            "Hi.",
        ),
        (
            '<|tool_call>call:f{at:{x:1},tags:[<|"|>a,b<|"|>,2],b:[1,true,word,{k:1.5}]}<tool_call|>',
            [
                (
                    "f",
                    '{"at": {"x": "1"}, "tags": ["a,b", "2"], "b": [1, true, "word", {"k": 1.5}]}',
                )
            ],
            "",
        ),
        ('<|tool_call>:f{days:<|"|>3<|"|>}<tool_call|>', [("f", '{"days": 3}')], ""),
        ("<|tool_call>call:f(days:3)<tool_call|>", [("f", '{"days": 3}')], ""),
        ('<|tool_call>call:f{tags:[<|"|>a<tool_call|>!', [("f", '{"tags": ["a"]}')], "!"),
        ('<|tool_call>call:f{city:<|"|>Os', [("f", '{"city": "Os')], ""),
        ("<|tool_call>call:f{days:3", [("f", '{"days": ')], ""),
        ("<|tool_call>call:f<tool_call|>", [("f", "{}")], ""),
        ("<|tool_call>call:f", [], "<|tool_call>call:f"),
        ("<|tool_call>f{}", [], "<|tool_call>f{}"),
        ('<|tool_call>call:f{<|"|>a b<|"|>:1]}<tool_call|>', [("f", '{"a b": 1}')], ""),
    ],
)
def test_gemma4(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    for pieces in (text, list(text)):
        parts = parse(pieces, tool_parser="gemma4", tools=GEMMA4_TOOLS)
        assert calls(parts) == expected
        assert content(parts) == rest


def test_gemma4_bounds_nesting() -> None:
    (call,) = calls(parse("<|tool_call>call:f{a:" + "[" * 100_000, tool_parser="gemma4"))
    assert call[1] == '{"a": ' + "[" * 63


HARMONY = (
    "<|channel|>analysis<|message|>I look it up.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"city": "Oslo"}<|call|>'
)


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        (HARMONY, [("f", '{"city": "Oslo"}')], ""),
        (f"{HARMONY}<|start|>assistant{HARMONY}", [("f", '{"city": "Oslo"}')] * 2, ""),
        (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", [("f", "{}")], ""),
        ("<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}", [("f", "{}")], ""),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", [("f", "{}")], ""),
        ('<|channel|>commentary to=functions.f<|message|>{"a', [("f", '{"a')], ""),
        ("<|channel|>final<|message|>Done.<|return|>", [], "Done."),
    ],
)
def test_openai(text: str, expected: list[tuple[str, str]], rest: str) -> None:
    check(text, "openai", expected, rest)


def test_openai_splits_off_reasoning_with_or_without_its_reasoning_parser() -> None:
    parts = parse(HARMONY, None, "openai")
    assert reasoning(parts) == "I look it up."
    assert parse(HARMONY, "openai_gptoss", "openai") == parts
    with pytest.raises(ConfigError, match="does not go with reasoning_parser 'qwen3'"):
        parse(HARMONY, "qwen3", "openai")


CALL_TEMPLATE = {
    "version": 1,
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{content.name}", "arguments": "{content.arguments}"},
            },
        },
    },
}
EACH_TEMPLATE = {
    "start_anchor": "assistant:",
    "fields": {
        "content": {"close": "<end>"},
        "tool_calls": {
            "open": "[CALLS]",
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}},
            "transform_each": True,
        },
    },
}


@pytest.mark.parametrize(
    ("template", "text", "expected", "thought", "rest"),
    [
        (
            CALL_TEMPLATE,
            '<think>Hm.</think>Hi.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
            [("f", '{"a": 1}')],
            "Hm.",
            "Hi.",
        ),
        (CALL_TEMPLATE, "<tool_call>no</tool_call>", [], "", "<tool_call>no</tool_call>"),
        (CALL_TEMPLATE, '<tool_call>{"name": "f"}', [], "", '<tool_call>{"name": "f"}'),
        (CALL_TEMPLATE, "<tool_call>" + "[" * 9999, [], "", "<tool_call>" + "[" * 9999),
        (
            EACH_TEMPLATE,
            'Hi.<end>[CALLS][{"name": "f", "arguments": "{}"}, {"name": "g", "arguments": {}}]',
            [("f", "{}"), ("g", "{}")],
            "",
            "Hi.",
        ),
    ],
)
def test_hf(
    template: dict[str, Any], text: str, expected: list[tuple[str, str]], thought: str, rest: str
) -> None:
    for pieces in (text, list(text)):
        parts = parse(pieces, None, "hf", response_template=template)
        assert calls(parts) == expected
        assert (reasoning(parts), content(parts)) == (thought, rest)


def test_hf_begins_where_the_prompt_ends() -> None:
    start = "<|im_start|>assistant\n<think>a</think>b<|im_end|>\n<|im_start|>assistant\n"
    for prompt, thought, rest in (
        (start, "", "Hm.</think>Hi."),
        (f"{start}<think>\n", "Hm.", "Hi."),
        (f"{start}<think>\n</think>", "", "Hm.</think>Hi."),
    ):
        parts = parse("Hm.</think>Hi.", "hf", response_template=CALL_TEMPLATE, prompt=prompt)
        assert (reasoning(parts), content(parts)) == (thought, rest)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "needs a response_template"),
        ({"fields": {}}, "start_anchor"),
        ({"start_anchor": "x", "fields": {"content": {"open_pattern": "(a+)+"}}}, "open_pattern"),
        ({"start_anchor": "x", "fields": {"mood": {"open": "y"}}}, "'mood'"),
        ({"start_anchor": "x", "fields": {"tool_calls": {"content": "json"}}}, "opening mark"),
        (
            {"start_anchor": "x", "fields": {"content": {"open": "y"}, "thinking": {"open": "yz"}}},
            "part of each other",
        ),
    ],
)
def test_templates_that_cannot_be_used_are_refused(template: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_response_template(template)
