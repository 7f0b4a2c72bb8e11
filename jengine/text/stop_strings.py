"""Stop string filter over streamed text.

In: each token's new text. Out: text safe to show, and the stop string once complete. Must not know:
tokens, requests, streaming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from jengine.errors import RequestError


class Checked(NamedTuple):
    """Released text, and the stop string that ended the output, if any."""

    text: str
    stop: str | None


@final
class StopChecker:
    """Finds the stop string that completes first; among those at one place, the first listed.

    The output is cut before the match, or after it if the string is included. `push(text,
    search=True)` finds matches completing in `text`. The last `max(len(stop)) - 1` characters are
    held back (none if the string is included) until `finish()`.
    """

    def __init__(self, stop: Sequence[str], include_stop_str_in_output: bool) -> None:
        if "" in stop:
            raise RequestError("stop has an empty string, which would match at once. Remove it.")
        self._stop = tuple(stop)
        self._include = include_stop_str_in_output
        self._kept_chars = max(map(len, self._stop), default=1) - 1
        self._recent = ""  # the last characters: all held back, or all shown if included

    def push(self, text: str, *, search: bool = True) -> Checked:
        """Add text. Do not push after a stop string."""
        recent, self._recent = self._recent, ""
        joined = recent + text
        shown = len(recent) if self._include else 0
        match = self._earliest(joined, len(recent)) if search else None
        if match is not None:
            end, stop = match
            cut = end if self._include else end - len(stop)
            return Checked(joined[shown:cut], stop)
        split = max(len(joined) - self._kept_chars, 0)
        self._recent = joined[split:]
        return Checked(joined[shown:] if self._include else joined[:split], None)

    def finish(self) -> str:
        """The held-back text; no stop string was found."""
        held, self._recent = self._recent, ""
        return "" if self._include else held

    def _earliest(self, text: str, searched: int) -> tuple[int, str] | None:
        """(end, stop string) of the earliest match that completes after `searched` characters."""
        ends = [
            (start + len(stop), stop)
            for stop in self._stop
            if (start := text.find(stop, max(searched - len(stop) + 1, 0))) >= 0
        ]
        return min(ends, key=lambda match: match[0], default=None)
