"""Validating reader of JSON objects: every value is checked, every error names its key.

In: a mapping parsed from JSON. Out: values of the requested type and range, or a CheckpointError
with what was given and what was expected. Must not know what the keys mean.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from jengine.errors import CheckpointError

T = TypeVar("T")
LARGEST_INTEGER = 2**31 - 1
# Truncates values in errors, however large or deep they are.
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100


class Fields:
    """One JSON object, read key by key. A missing key gives the default, a wrong value raises
    CheckpointError; `default=None` makes the key required."""

    def __init__(self, values: object, where: str = "config.json"):
        if not isinstance(values, Mapping):
            raise CheckpointError(f"{where}: given {_SHOWN.repr(values)}, expected a JSON object.")
        self.values = values
        self.where = where

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise CheckpointError for the value at `key`."""
        given = _SHOWN.repr(self.values[key]) if key in self.values else "nothing"
        raise CheckpointError(f"{self.where}: {key!r}: given {given}, expected {expected}.")

    def integer(
        self,
        key: str,
        default: int | None = None,
        *,
        minimum: int = 1,
        maximum: int = LARGEST_INTEGER,
    ) -> int:
        """An integer within limits."""
        value = self.values.get(key, default)
        if type(value) is not int or not minimum <= value <= maximum:
            self.refuse(key, f"an integer from {minimum} to {maximum}")
        return value

    def optional_integer(
        self, key: str, default: int | None, *, minimum: int = 1, maximum: int = LARGEST_INTEGER
    ) -> int | None:
        """As `integer`; null gives None."""
        if self.values.get(key, default) is None:
            return None
        return self.integer(key, default, minimum=minimum, maximum=maximum)

    def integers(
        self, key: str, default: int | None, *, maximum: int, each: str = "a token id"
    ) -> tuple[int, ...]:
        """A tuple of integers from null, one, or a list; `each` names them in errors."""
        value = self.values.get(key, default)
        found = () if value is None else (value,) if type(value) is int else value
        if not isinstance(found, list | tuple) or not all(
            type(one) is int and 0 <= one <= maximum for one in found
        ):
            self.refuse(key, f"{each} from 0 to {maximum}, a list of them, or null")
        return tuple(found)

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        minimum: float = 0.0,
        maximum: float = math.inf,
        above_minimum: bool = False,
    ) -> float:
        """A finite number within limits; integers count."""
        value = self.values.get(key, default)
        if type(value) is int and abs(value) <= 2**53:
            value = float(value)
        if (
            type(value) is not float
            or not math.isfinite(value)
            or not minimum <= value <= maximum
            or (above_minimum and value == minimum)
        ):
            low = f"above {minimum}" if above_minimum else f"of at least {minimum}"
            high = "" if math.isinf(maximum) else f" and at most {maximum}"
            self.refuse(key, f"a finite number {low}{high}")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers."""
        values = self.values.get(key)
        if not isinstance(values, list | tuple) or len(values) != count:
            self.refuse(key, f"a list of {count} numbers")
        each = Fields(
            {str(index): value for index, value in enumerate(values)}, f"{self.where}: {key}"
        )
        return tuple(each.number(index, above_minimum=True) for index in each.values)

    def optional_number(self, key: str, default: float | None) -> float | None:
        """A positive number; null gives None."""
        if self.values.get(key, default) is None:
            return None
        return self.number(key, default, above_minimum=True)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if type(value) is not bool:
            self.refuse(key, "true or false")
        return value

    def expect(self, key: str, value: bool, why: str = "") -> None:
        """Refuse any other flag than `value`, which is also the default; `why` ends the error."""
        if self.flag(key, value) != value:
            self.refuse(key, f"{str(value).lower()}{why}")

    def choice(self, key: str, default: str, known: Mapping[str, T]) -> T:
        """The value that `known` maps the word at `key` to."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in known:
            self.refuse(key, f"one of {', '.join(sorted(known))}")
        return known[value]

    def part(self, key: str) -> Fields | None:
        """A nested object, or None for null or a missing key."""
        value = self.values.get(key)
        return None if value is None else Fields(value, f"{self.where}: {key}")
