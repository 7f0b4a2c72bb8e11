"""Thinking budgets: the maximum number of reasoning tokens, and the marks around reasoning.

In: an engine's marks as token ids, a request's budget. Out: plain data that travels in the plan.
Must not know tokenizers, or how a budget is enforced (`grammar/thinking.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jengine.errors import RequestError

NAME = "thinking_token_budget"
UNLIMITED = -1
MOST = 2**31 - 1  # maximum budget: beyond every context


class ReasoningMarks(msgspec.Struct, frozen=True, array_like=True):
    """Token ids around reasoning. `forced_end` is emitted once the budget is spent: it contains
    `natural_end`, the model's own end mark, possibly after other text, and never `start`, so it
    always ends reasoning."""

    start: tuple[int, ...]
    natural_end: tuple[int, ...]
    forced_end: tuple[int, ...]


class ThinkingBudget(msgspec.Struct, frozen=True, array_like=True):
    """One request's budget."""

    tokens: int
    marks: ReasoningMarks


def occurs(mark: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the tokens of a mark occur here, contiguously."""
    places = range(len(tokens) - len(mark) + 1)
    return any(tuple(tokens[at : at + len(mark)]) == tuple(mark) for at in places)


def checked_budget(name: str, value: Any) -> int | None:
    """Validate a budget. Returns None for no limit."""
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    count = value.__index__() if is_integer else UNLIMITED - 1
    if count < UNLIMITED:
        raise RequestError(
            f"`{name}` must be a non-negative integer or -1 for unlimited; given: {value!r:.80}."
        )
    return None if count == UNLIMITED else min(count, MOST)


def budget_with(tokens: int, marks: ReasoningMarks | None) -> ThinkingBudget:
    """A request's budget with the engine's marks. Raises RequestError if the engine has none."""
    if marks is None:
        raise RequestError(
            f"{NAME} is set but reasoning_config is not configured. Please set --reasoning-parser "
            f"and/or --reasoning-config to use {NAME}."
        )
    return ThinkingBudget(tokens, marks)
