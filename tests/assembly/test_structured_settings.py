"""structured_outputs_config: vLLM's keys, what they do to requests, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.assembly.processors import RequestProcessors
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.structured_settings import structured_outputs_defaults
from jengine.engine.input_processor import InputProcessor
from jengine.engine.limits import Limits
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.grammar.compiler import GrammarCompiler
from jengine.plan import RowSampling
from jengine.sampling_params import SamplingParams
from jengine.structured_outputs import StructuredOutputsParams
from tests.engine.scripted import VOCAB
from tests.server.serving import letters

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def sampling_of(prompt: str = "", structured: Any = None, **settings: Any) -> RowSampling:
    """How a request's row samples in an engine with these settings."""
    args = EngineArgs("demo", **settings)
    defaults = structured_outputs_defaults(args.reasoning_parser, args.structured_outputs_config)
    limits = Limits(VOCAB, 100, 20, ())
    processors = RequestProcessors(None, None)
    inputs = InputProcessor(limits, letters(), 0, GrammarCompiler(), defaults, processors)
    params = SamplingParams(structured_outputs=structured or StructuredOutputsParams(json=SCHEMA))
    given = {"prompt_token_ids": letters().encode(prompt, False)}
    (wire,) = inputs.wires(given, params)  # type: ignore[arg-type]
    return wire.sampling


def grammar_of(*args: Any, **settings: Any) -> Any:
    return sampling_of(*args, **settings).grammar


def test_switches_hold_for_all_requests() -> None:
    usual = grammar_of()
    assert usual.whitespace and "additionalProperties" not in usual.text
    config = {"backend": "guidance", "disable_any_whitespace": True}
    compact = grammar_of(structured_outputs_config=config)
    assert not compact.whitespace and compact.text == usual.text
    closed = grammar_of(structured_outputs_config={"disable_additional_properties": True})
    assert '"additionalProperties": false' in closed.text


@pytest.mark.parametrize(
    "settings",
    [
        {"reasoning_parser": "deepseek_r1"},
        {"structured_outputs_config": {"reasoning_parser": "deepseek_r1"}},
    ],
)
def test_grammars_begin_after_reasoning(settings: dict[str, Any]) -> None:
    assert grammar_of("hi", **settings).begins_after == tuple(letters().encode("</think>", False))
    # The prompt has ended it; or the request says itself what ends it.
    assert grammar_of("hi<think>hm</think>", **settings).begins_after == ()
    own = StructuredOutputsParams(regex="a", begins_after="!")
    assert grammar_of("hi", own, **settings).begins_after == tuple(letters().encode("!", False))


def test_grammars_may_begin_inside_reasoning() -> None:
    config = {"reasoning_parser": "qwen3", "enable_in_reasoning": True}
    assert grammar_of("hi", structured_outputs_config=config).begins_after == ()


def test_free_requests_have_no_grammar_and_vllms_empty_values_ask_for_nothing() -> None:
    config = {"backend": "auto", "reasoning_parser": "", "reasoning_parser_plugin": ""}
    args = EngineArgs("demo", reasoning_parser="", structured_outputs_config=config)
    assert args.reasoning_parser is None
    assert grammar_of("hi", structured_outputs_config=config).begins_after == ()


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"backend": "odd"}, ConfigError, "expected one of 'auto', 'guidance', 'xgrammar'"),
        ({"backend": "fast"}, ConfigError, "expected one of 'auto', 'guidance'"),
        ({"disable_any_whitespaces": True}, ConfigError, "Did you mean 'disable_any_whitespace'"),
        ({"disable_any_whitespace": "yes"}, ConfigError, "expected True or False"),
        ({"reasoning_parser": "none"}, ConfigError, "reasoning_parser is 'none'"),
        ({"reasoning_parser_plugin": "a.py"}, UnsupportedFeature, "parsers are built in"),
        ([], ConfigError, "expected a dict"),
    ],
)
def test_what_is_refused(config: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        EngineArgs("demo", structured_outputs_config=config or [1])


def test_two_parsers_are_refused() -> None:
    with pytest.raises(ConfigError, match="has another one, 'qwen3'"):
        EngineArgs(
            "demo",
            reasoning_parser="deepseek_r1",
            structured_outputs_config={"reasoning_parser": "qwen3"},
        )
