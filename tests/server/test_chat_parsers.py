"""Reasoning and tool calls in chats: ids, deltas, counts, parsers that need special tokens."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.cli.main import main
from jengine.errors import ConfigError
from jengine.text import reasoning_tokens
from jengine.text.reasoning_tokens import MarkIds
from tests.server.serving import UNTOLD, answer_with, events, letters, serving

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def ask(monkeypatch: pytest.MonkeyPatch, text: str, settings: dict[str, Any], **fields: Any) -> Any:
    """The response to a model that writes this text, then ends."""
    answer_with(monkeypatch, [*letters().encode(text, add_special_tokens=False), 2])
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300}
    body |= {"stop_token_ids": [2], **fields}
    with serving(**settings) as client:
        return client.post(PATH, json=body)


HERMES = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}


def test_deltas_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = events(ask(monkeypatch, CALL + CALL, HERMES, tools=TOOLS, stream=True))
    deltas = [
        call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    starts = [delta for delta in deltas if "id" in delta]
    assert [(one["index"], one["function"]["name"], one["type"]) for one in starts] == [
        (0, "f", "function"),
        (1, "f", "function"),
    ]
    assert starts[0]["id"] != starts[1]["id"]
    assert len(deltas) > 4, "arguments come in pieces"
    for delta in deltas:
        assert delta in starts or delta.keys() == {"index", "function"}
        assert delta in starts or delta["function"].keys() == {"arguments"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_without_tools_or_with_none_nothing_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = ask(monkeypatch, CALL, HERMES, **fields).json()["choices"]
        assert choice["message"]["content"] == CALL.replace("\n", "")
        assert choice["finish_reason"] == "stop"


def test_a_broken_call_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = CALL.replace("1}}", "1,")
    (choice,) = ask(monkeypatch, broken, HERMES, tools=TOOLS).json()["choices"]
    chunks = events(ask(monkeypatch, CALL + broken, HERMES, tools=TOOLS, stream=True))
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_call_that_is_cut_off_ends_by_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = ask(monkeypatch, CALL, HERMES, tools=TOOLS, max_tokens=50).json()["choices"]
    assert choice["finish_reason"] == "length"
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert '{"a": 1}'.startswith(arguments) and arguments


@pytest.mark.parametrize("shown", [True, False])
def test_reasoning_is_counted(monkeypatch: pytest.MonkeyPatch, shown: bool) -> None:
    text, settings = "<think>why</think>so", {"reasoning_parser": "qwen3"}
    whole = ask(monkeypatch, text, settings, include_reasoning=shown).json()
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = events(ask(monkeypatch, text, settings, include_reasoning=shown, **options))
    assert {**UNTOLD, **last["usage"]} == whole["usage"]
    assert ask(monkeypatch, text, {}).json()["usage"]["completion_tokens_details"] is None


@pytest.mark.parametrize("shown", [True, False])
def test_an_answer_that_only_reasons_has_no_content(
    monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    settings = {"reasoning_parser": "qwen3"}
    whole = ask(monkeypatch, "<think>why</think>", settings, include_reasoning=shown).json()
    message = whole["choices"][0]["message"]
    assert message["content"] is None and message["reasoning"] == ("why" if shown else None)


def test_reasoning_is_counted_by_ids_where_they_mark_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text, settings = "<think>why</think>so", {"reasoning_parser": "qwen3"}
    (end,) = letters().encode(">", False)
    marks = MarkIds(silent=frozenset(), ends=frozenset({end}))
    monkeypatch.setattr(reasoning_tokens, "_mark_ids", lambda tokenizer, parser: marks)
    whole = ask(monkeypatch, text, settings).json()
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}, (
        "up to the first >"
    )
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = events(ask(monkeypatch, text, settings, **options))
    assert {**UNTOLD, **last["usage"]} == whole["usage"]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"tool_call_parser": "llama3_json", "enable_auto_tool_choice": True}, "a<s>b"),
        ({**HERMES, "reasoning_parser": "deepseek_r1"}, "ab"),
    ],
)
def test_marks_that_are_special_tokens_are_kept_for_the_parser(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], shown: str
) -> None:
    """The letters' `<s>` is a special token. Llama's mark of a call may be one, too; those of Qwen
    are known, and are none of this tokenizer's."""
    ids = [*letters().encode("a", False), 1, *letters().encode("b", False), 2]
    answer_with(monkeypatch, ids)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": TOOLS}
    with serving(**settings) as client:
        response = client.post(PATH, json={**body, "stop_token_ids": [2]})
    message = response.json()["choices"][0]["message"]
    assert (message["content"] or message["reasoning"]) == shown


def test_unknown_parsers_are_refused_before_the_engine_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "demo", "--reasoning-parser", "qwen"]) != 0
    assert "Did you mean 'qwen3'?" in capsys.readouterr().err


def test_the_models_own_template_is_read_when_the_server_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        pytest.raises(ConfigError, match="needs a response_template"),
        serving(reasoning_parser="hf"),
    ):
        pass
    template = {
        "start_anchor": "assistant:",
        "fields": {"thinking": {"open": "[", "close": "]"}, "content": {}},
    }
    monkeypatch.setattr(letters().hf, "response_template", template)
    (choice,) = ask(monkeypatch, "[why]so", {"reasoning_parser": "hf"}).json()["choices"]
    assert choice["message"]["reasoning"] == "why" and choice["message"]["content"] == "so"
