"""Options of tokenizing one prompt: vLLM's tokenization_kwargs.

In: options by name. Out: validated options, applied to texts and token ids. Must not know
tokenizers, requests or the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jengine.errors import RequestError, UnsupportedFeature, nearest_name

Side = Literal["left", "right"]
NAMES = (
    "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "do_lower_case",
    "truncation", "max_length", "padding",
)  # fmt: skip
NO_TRUNCATION = (None, False, "do_not_truncate")
TRUNCATION = (*NO_TRUNCATION, True, "longest_first")


@dataclass(frozen=True)
class Tokenization:
    """Options of one call; defaults change nothing."""

    # None: added to texts, not to conversations, whose template has them.
    add_special_tokens: bool | None = None
    # Truncation limit in tokens; -1: as many as leave room for an answer.
    truncate_prompt_tokens: int | None = None
    # Side that is cut. None: left for generation, else the tokenizer's default. Special tokens are
    # kept.
    truncation_side: Side | None = None
    do_lower_case: bool = False

    def longest(self, max_model_len: int, answer_room: int = 1) -> int | None:
        """Token limit for truncation, or None. Raises RequestError."""
        limit = self.truncate_prompt_tokens
        if limit is not None and limit > max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens={limit} is above the model's context of {max_model_len} "
                "tokens; -1 keeps as many as fit."
            )
        return max_model_len - answer_room if limit == -1 else limit

    def cut(self, items: Sequence[Any], limit: int, usual: Side) -> Any:
        """First or last `limit` items; `usual` is the default side."""
        side = self.truncation_side or usual
        if len(items) <= limit:
            return items
        return items[-limit:] if side == "left" else items[:limit]


AS_USUAL = Tokenization()


def checked_tokenization(given: Mapping[str, Any] | None) -> Tokenization:
    """Validate `tokenization_kwargs`. Raises RequestError, or UnsupportedFeature for padding."""
    if given is None:
        return AS_USUAL
    if not isinstance(given, Mapping):
        raise RequestError(f"tokenization_kwargs={given!r}: expected a dict.")
    for name in given:
        if name not in NAMES:
            raise RequestError(
                f"tokenization_kwargs has no key {name!r}; known: {', '.join(NAMES)}."
                f"{nearest_name(str(name), NAMES)}"
            )
    if given.get("padding") not in (None, False, "do_not_pad"):
        raise UnsupportedFeature(
            f"padding={given['padding']!r}: a prompt is never padded, since it would be answered "
            "with its padding. Leave it out."
        )
    return Tokenization(
        _option(given, "add_special_tokens", (True, False, None)),
        _limit(given),
        _option(given, "truncation_side", ("left", "right", None)),
        bool(_option(given, "do_lower_case", (True, False, None))),
    )


def _option(given: Mapping[str, Any], name: str, choices: tuple[Any, ...]) -> Any:
    value = given.get(name)
    if type(value) not in map(type, choices) or value not in choices:
        raise RequestError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}.")
    return value


def _limit(given: Mapping[str, Any]) -> int | None:
    """truncate_prompt_tokens, or its equivalent from transformers' truncation and max_length."""
    limit = given.get("truncate_prompt_tokens")
    truncation = _option(given, "truncation", TRUNCATION)
    if truncation not in NO_TRUNCATION:
        limit = given.get("max_length", -1)
    elif "max_length" in given:
        raise RequestError("max_length without truncation=True would cut nothing; give both.")
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < -1 or limit == 0:
        raise RequestError(
            f"truncate_prompt_tokens={limit!r}: expected an integer of at least 1, or -1 for as "
            "many as fit."
        )
    return limit
