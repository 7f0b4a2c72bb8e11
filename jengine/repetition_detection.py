"""Ends answers that repeat themselves: settings and detection.

In: an answer's tokens. Out: whether they end in enough repetitions of a pattern. Plain data, which
travels with requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jengine.errors import RequestError
from jengine.sampling_checks import integer


class RepetitionDetectionParams(msgspec.Struct, frozen=True):
    """Ends an answer once its last tokens are one pattern, `min_count` times in a row.

    Patterns have `min_pattern_size` (0 means 1) to `max_pattern_size` tokens; a `max_pattern_size`
    of 0 disables detection.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            integer(f"repetition_detection.{name}", getattr(self, name), 0)
        if self.min_pattern_size > self.max_pattern_size:
            raise RequestError(
                f"repetition_detection: min_pattern_size={self.min_pattern_size} is above "
                f"max_pattern_size={self.max_pattern_size}."
            )
        if self.max_pattern_size and self.min_count < 2:
            raise RequestError(
                f"repetition_detection: min_count={self.min_count}; expected at least 2, as a "
                "pattern that came once repeats nothing. max_pattern_size=0 looks for none."
            )

    @property
    def longest(self) -> int:
        """Length of the tail to examine, in tokens."""
        return self.max_pattern_size * self.min_count

    def found_in(self, answer: Sequence[int]) -> bool:
        """Whether these tokens end in enough repetitions of a pattern."""
        for size in range(max(self.min_pattern_size, 1), self.max_pattern_size + 1):
            length = size * self.min_count
            if length > len(answer):
                return False
            # A sequence has period `size` iff it equals itself shifted by `size`.
            tail = answer[-length:]
            if tail[size:] == tail[:-size]:
                return True
        return False


def checked_repetition_detection(name: str, given: Any) -> RepetitionDetectionParams:
    """The setting as users give it: parameters, or a dict of them."""
    if isinstance(given, dict):
        known = RepetitionDetectionParams.__struct_fields__
        unknown = sorted(given.keys() - set(known), key=str)
        if unknown:
            raise RequestError(f"{name} has {unknown[0]!r}; it knows {', '.join(known)}.")
        given = RepetitionDetectionParams(**given)
    if not isinstance(given, RepetitionDetectionParams):
        raise RequestError(
            f"{name} is a {type(given).__name__}; expected "
            "RepetitionDetectionParams(max_pattern_size=..., min_count=...) or such a dict."
        )
    return given
