"""reasoning_config: vLLM's keys, the marks that come of them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.reasoning_settings import reasoning_marks
from jengine.errors import ConfigError
from jengine.thinking_budget import ReasoningMarks
from tests.server.serving import letters

THINK, END = "<think>", "</think>"
BRACKETS = {"reasoning_start_str": "(", "reasoning_end_str": ")"}


def marks_of(**settings: Any) -> tuple[str, ...] | None:
    """The texts of the marks of an engine with these settings."""
    args = EngineArgs("demo", **settings)
    marks = reasoning_marks(args.reasoning_parser, args.reasoning_config, letters())
    if marks is None:
        return None
    ids = (marks.start, marks.natural_end, marks.forced_end)
    return tuple(letters().decode([*one]) for one in ids)


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({}, None),
        ({"reasoning_config": {}}, None),
        ({"reasoning_parser": "qwen3"}, (THINK, END, END)),
        ({"reasoning_config": {"reasoning_parser": "deepseek_r1"}}, (THINK, END, END)),
        ({"structured_outputs_config": {"reasoning_parser": "qwen3"}}, (THINK, END, END)),
        ({"reasoning_parser": "gemma4"}, None),  # whose marks are not as simple
        ({"reasoning_parser": "gemma4", "reasoning_config": BRACKETS}, ("(", ")", ")")),
        ({"reasoning_config": BRACKETS}, ("(", ")", ")")),
        (
            {"reasoning_parser": "qwen3",
             "reasoning_config": {"reasoning_end_str": "So, well.</think>"}},
            (THINK, END, "So, well.</think>"),
        ),
        (
            {"reasoning_parser": "qwen3",
             "reasoning_config": {"reasoning_parser": "qwen3", "reasoning_start_str": "hm"}},
            ("hm", END, END),
        ),
    ],
)  # fmt: skip
def test_marks(settings: dict[str, Any], texts: tuple[str, ...] | None) -> None:
    assert marks_of(**settings) == texts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reasoning_config": [1]}, "expected a dict"),
        ({"reasoning_config": {"reasoning_end": "x"}}, "no key 'reasoning_end'"),
        ({"reasoning_config": {"reasoning_end_str": 5}}, "each of its values a text"),
        ({"reasoning_config": {"reasoning_parser": "none"}}, "'none', which is not known"),
        ({"reasoning_config": {"reasoning_end_str": ")"}}, "without a parser: expected both"),
        (
            {"reasoning_parser": "qwen3", "reasoning_config": {"reasoning_parser": "gemma4"}},
            "Give one of them",
        ),
        (
            {"reasoning_parser": "qwen3", "reasoning_config": {"reasoning_end_str": "enough"}},
            "expected that end to hold the tokens",
        ),
        (
            {"reasoning_config": {"reasoning_start_str": "(", "reasoning_end_str": "( )"}},
            "and none of the beginning",
        ),
        (
            {"reasoning_config": {"reasoning_start_str": "|", "reasoning_end_str": "|"}},
            "and none of the beginning",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"reasoning_(config|parser)") as caught:
        marks_of(**settings)
    assert message in str(caught.value)


def test_a_vocabulary_without_the_parsers_marks_has_none() -> None:
    """An engine with such a parser starts, as it did, and refuses budgets."""

    class Unknown:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [0]  # the unknown token

    tokenizer: Any = Unknown()
    assert reasoning_marks("qwen3", None, tokenizer) is None
    assert reasoning_marks("qwen3", None, None) is None
    with pytest.raises(ConfigError, match="none of the beginning"):
        reasoning_marks("qwen3", BRACKETS, tokenizer)


def test_marks_are_plain_data() -> None:
    marks = reasoning_marks("qwen3", None, letters())
    assert isinstance(marks, ReasoningMarks) and marks.start == tuple(
        letters().encode(THINK, False)
    )
