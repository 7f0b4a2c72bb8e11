"""Random `SamplingParams`: a strategy for each field of the class, and the rules between fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from jengine import RequestOutputKind, SamplingParams, StructuredOutputsParams
from tests.api.engines import VOCAB
from tests.api.processor_functions import halved

TOKENS = st.integers(3, VOCAB - 3)
TEXTS = st.text("abcdefgh.", min_size=1, max_size=2)
FLAGS = st.booleans()
COUNTS = st.sampled_from((None, 0, 1, 3, -1))
GRAMMARS = (
    {"regex": "[a-f]{3,9}"},
    {"choice": ["abc", "abd", "x"]},
    {"json": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
)

FIELDS: Mapping[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 2),
    "temperature": st.just(0) | st.floats(0.01, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, VOCAB + 3),
    "min_p": st.floats(0, 1),
    "seed": st.integers(-(2**63), 2**63 - 1).filter(lambda seed: seed != -1),
    "stop": TEXTS | st.lists(TEXTS, max_size=3),
    "stop_token_ids": st.lists(TOKENS, max_size=4),
    "bad_words": st.lists(TEXTS, max_size=3),
    "ignore_eos": FLAGS,
    "max_tokens": st.integers(1, 24),
    "min_tokens": st.integers(0, 24),
    "logprobs": COUNTS,
    "prompt_logprobs": COUNTS,
    "logprob_token_ids": st.lists(TOKENS, min_size=1, max_size=4, unique=True),
    "flat_logprobs": FLAGS,
    "detokenize": FLAGS,
    "skip_special_tokens": FLAGS,
    "spaces_between_special_tokens": FLAGS,
    "include_stop_str_in_output": FLAGS,
    "output_kind": st.sampled_from(RequestOutputKind),
    "stream_interval": st.integers(1, 4),
    "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100), max_size=4),
    "allowed_token_ids": st.lists(TOKENS, min_size=1, max_size=20),
    "skip_reading_prefix_cache": st.sampled_from((None, True, False)),
    "structured_outputs": st.sampled_from(GRAMMARS).map(
        lambda given: StructuredOutputsParams(**given)
    ),
    "thinking_token_budget": st.integers(-1, 8),
    "repetition_detection": st.fixed_dictionaries(
        {"max_pattern_size": st.integers(1, 4), "min_count": st.integers(2, 4)}
    ),
    "routed_experts_prompt_start": st.integers(0, 1),  # the shortest prompt
    "logits_processors": st.just([halved]),
    # Refused where there is no logits processor of the host that would read it.
    "extra_args": st.sampled_from((None, {})),
}
# Most requests leave most fields alone.
USUAL = 6


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    """Valid ones, with a seed: two answers without one differ."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=USUAL, unique=True))
    given = {
        name: draw(FIELDS[name]) for name in {"seed": 0, "max_tokens": 0, **dict.fromkeys(names)}
    }
    return SamplingParams(**agreed(given))


def agreed(given: dict[str, Any]) -> dict[str, Any]:
    """Without what the fields' rules forbid together."""
    if given.get("temperature") == 0:
        given.pop("n", None)
    if given.get("detokenize") is False:
        given.pop("stop", None)
    if "logprob_token_ids" in given:
        given.pop("logprobs", None)
    if given.get("prompt_logprobs") is not None:
        given.pop("skip_reading_prefix_cache", None)
    given["min_tokens"] = min(given.get("min_tokens", 0), given["max_tokens"])
    return given
