"""A few requests of every kind, for tests and programs that must all make the same."""

from __future__ import annotations

from typing import Any

from jengine import SamplingParams
from tests.api.engines import random_prompts

PROMPTS = random_prompts(1, 17, 60, 130)
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 7, "top_k": 20, "top_p": 0.9},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {5: 2.0}},
]
PARAMS = [SamplingParams(max_tokens=10, ignore_eos=True, logprobs=2, **kind) for kind in KINDS]
LONG = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
