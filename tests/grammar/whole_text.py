"""A budget of reasoning as it is defined: by the whole text, read anew for every token."""

from __future__ import annotations

from jengine.thinking_budget import ThinkingBudget


def last(text: list[int], mark: tuple[int, ...]) -> int:
    """The last place of a mark; -1 without one."""
    places = range(len(text) - len(mark) + 1)
    return max((at for at in places if tuple(text[at : at + len(mark)]) == mark), default=-1)


def must_follow(text: list[int], budget: ThinkingBudget) -> int | None:
    """The token that a text with a budget must go on with, read from the text as a whole."""
    marks = budget.marks
    start, end, forced = marks.start, marks.natural_end, marks.forced_end
    begin = last(text, start)
    if begin <= last(text, end) or len(text) - begin - len(start) < budget.tokens:
        return None
    begun = [n for n in range(len(forced)) if tuple(text[len(text) - n :]) == forced[:n]]
    return forced[max(begun)]
