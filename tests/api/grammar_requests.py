"""Requests with grammars beside free ones, which must be answered alike wherever a model runs."""

from __future__ import annotations

import re
from typing import Any

import jengine
from jengine import SamplingParams, StructuredOutputsParams
from tests.api.engines import random_prompts

PROMPTS = random_prompts(1, 17, 60, 130, 5)
# The second one forces several tokens at a time, which are appended without sampling.
REGEXES = [
    "[a-c]{8}",
    "beginning now[0-9]{3}in the middle(x|y)and at the end",
    None,
    "(yes|no), (always|never)",
    "[a-z]{20}",
]
KINDS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0},
    {"temperature": 0.8, "seed": 7, "ignore_eos": True},
    {"temperature": 1.0, "seed": 2, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 1.0, "seed": 9, "top_k": 5},
]


def params() -> list[SamplingParams]:
    """The parameters of each prompt."""
    return [
        SamplingParams(max_tokens=60, structured_outputs=ruled(regex), **kind)
        for regex, kind in zip(REGEXES, KINDS, strict=True)
    ]


def ruled(regex: str | None) -> StructuredOutputsParams | None:
    return None if regex is None else StructuredOutputsParams(regex=regex)


def texts(llm: jengine.LLM) -> list[str]:
    """The answers, which follow their grammars."""
    found = [output.outputs[0] for output in llm.generate(PROMPTS, params())]
    for regex, answer in zip(REGEXES, found, strict=True):
        if regex is not None:
            assert answer.finish_reason == "stop", answer
            assert re.fullmatch(regex, answer.text), answer
    return [answer.text for answer in found]
