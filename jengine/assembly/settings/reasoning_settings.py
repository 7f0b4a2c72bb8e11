"""Thinking budgets: the keys of `reasoning_config`. No jax.

In: the settings, by vLLM's names, and the model's tokenizer. Out: the token ids that begin and end
reasoning, or a ConfigError. Must not know how budgets are enforced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.dict_settings import checked_keys
from jengine.errors import ConfigError
from jengine.text.chat_parser import check_parser_names
from jengine.text.reasoning_parsers import REASONING_PARSERS
from jengine.thinking_budget import ReasoningMarks, occurs

if TYPE_CHECKING:  # not imported for help texts
    from jengine.text.tokenizer import Tokenizer

NAME = "reasoning_config"
KEYS = {
    "reasoning_parser": "how the model marks its reasoning, if reasoning_parser is not given",
    "reasoning_start_str": "text that begins reasoning, by default the parser's",
    "reasoning_end_str": "text that ends reasoning whose budget is spent, by default the parser's; "
    "words may stand before that",
}


def check_reasoning_config(parser: str | None, config: Any) -> None:
    """Raise ConfigError for values that are not strings, unknown keys, and contradictions."""
    checked_keys(NAME, config, KEYS)
    for key, value in (config or {}).items():
        if not isinstance(value, str):
            raise ConfigError(f"{NAME}[{key!r}]={value!r:.80}: expected text.")
    inside = (config or {}).get("reasoning_parser") or None
    if None not in (parser, inside) and parser != inside:
        raise ConfigError(
            f"reasoning_parser={parser!r}, and {NAME} has another one, {inside!r}. Give one of "
            "them."
        )
    check_parser_names(inside, None)
    if config and inside is None and parser is None and not all(texts_of(None, config)):
        raise ConfigError(
            f"{NAME} without a parser: expected both reasoning_start_str and reasoning_end_str, or "
            "reasoning_parser."
        )


def reasoning_marks(
    parser: str | None, config: Mapping[str, str] | None, tokenizer: Tokenizer | None
) -> ReasoningMarks | None:
    """The marks by checked settings; None if unknown, so that no budget is enforced."""
    given = config or {}
    start, natural_end, forced_end = texts_of(given.get("reasoning_parser") or parser, given)
    if not (start and forced_end) or tokenizer is None:
        return None
    texts = (start, natural_end, forced_end)
    marks = ReasoningMarks(*(tuple(tokenizer.encode(text, False)) for text in texts))
    leads_out = occurs(marks.natural_end, marks.forced_end)
    if all((marks.start, marks.natural_end, leads_out)) and not occurs(
        marks.start, marks.forced_end
    ):
        return marks
    if not config:
        return None  # the vocabulary lacks these marks
    raise ConfigError(
        f"{NAME}: reasoning begins with {start!r}, which are the tokens {[*marks.start]}, and its "
        f"forced end {forced_end!r} is {[*marks.forced_end]}; expected that end to hold the tokens "
        f"{[*marks.natural_end]} of {natural_end!r}, with which the model itself ends reasoning, "
        "and none of the beginning. Change reasoning_start_str or reasoning_end_str."
    )


def texts_of(parser: str | None, config: Mapping[str, str]) -> tuple[str, str, str]:
    """Texts of (start of reasoning, its end, the end forced by a spent budget); empty if
    unknown."""
    found = None if parser is None else REASONING_PARSERS[parser].marks
    start = config.get("reasoning_start_str") or (found.start if found else "")
    forced_end = config.get("reasoning_end_str") or (found.ends[0] if found else "")
    return start, found.ends[0] if found else forced_end, forced_end
