"""Declares fields of request parameters: `Annotated[type, Parameter(...)]`.

`SamplingParams` and `PoolingParams` are the tables from which checks, HTTP bodies, flags, benchmark
settings and step rows are derived. Must not know what a field means.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Meta, Struct, defstruct

from jengine.errors import RequestError
from jengine.sampling_checks import boolean, integer, number

Check = Callable[[str, Any], Any]  # (name, value) -> normalised value, or a RequestError


class Given(enum.Flag):
    """Interfaces that accept a parameter, and whether RowSampling has it."""

    NOWHERE = 0
    TEXT = enum.auto()  # bodies of completions, chats and responses
    MESSAGES = enum.auto()  # bodies of /v1/messages
    AUDIO = enum.auto()  # forms of transcriptions and translations
    BENCH = enum.auto()  # `jengine bench serve`
    ROW = enum.auto()  # same-named field of RowSampling
    SAMPLED = TEXT | AUDIO | BENCH | ROW


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """Range, type and interfaces of a field."""

    least: int | None = None
    above: int | None = None  # exclusive minimum, instead of `least`
    most: int | None = None
    check: Check | None = None  # replaces the limits; None needs no check
    json: Any = None  # JSON type, if not the field's type
    help: str = ""  # help of the command-line flag; empty: no flag
    on: Given = Given.NOWHERE
    adjusts: bool = False  # other values than the default need a step that adjusts logits
    # Filled in by `declared`. `kind`: the field's type without None.
    kind: Any = None
    may_be_none: bool = False
    default: Any = None

    @property
    def json_type(self) -> Any:
        """JSON type, with its range for /openapi.json."""
        limits = {"minimum": self.least, "exclusiveMinimum": self.above, "maximum": self.most}
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        return self.json or (Annotated[self.kind, told(**limits)] if limits else self.kind)

    def checked(self, name: str, value: Any) -> Any:
        """Validate and normalise a value. Raises RequestError."""
        if value is None and self.may_be_none:
            return None
        return (self.check or partial(_CHECKS[self.kind], self))(name, value)

    def _boolean(self, name: str, value: Any) -> bool:
        return boolean(name, value)

    def _integer(self, name: str, value: Any) -> int:
        return integer(name, value, self.least, self.most)

    def _number(self, name: str, value: Any) -> float:
        found = number(name, value, self.least if self.above is None else self.above, self.most)
        if found == self.above:
            bounds = f"above {self.above}" + (f" and at most {self.most}" if self.most else "")
            raise RequestError(
                f"{name}={self.above}: expected a number {bounds} ({self.default:g} is off)."
            )
        return found


_CHECKS: dict[Any, Callable[[Parameter, str, Any], Any]] = {
    bool: Parameter._boolean,
    int: Parameter._integer,
    float: Parameter._number,
}
Table = Mapping[str, Parameter]


def told(**schema: Any) -> Meta:
    """Extra schema for /openapi.json. Not enforced by decoding: values out of range are refused
    later, with a better message."""
    return Meta(extra_json_schema=schema)


Amount = Annotated[int, told(minimum=1)]
AmountOrNone = Annotated[int, told(minimum=0)]
AmountOrAll = Annotated[int, told(minimum=-1)]  # -1: all
TokenId = Annotated[int, told(minimum=0, maximum=2**31 - 1)]
Text = Annotated[str, told(minLength=1)]
Texts = list[Text]
Bias = Annotated[
    dict[str, Annotated[float, told(minimum=-100, maximum=100)]],
    told(propertyNames={"pattern": "^[0-9]{1,6}$"}),
]


def declared(owner: type[Any]) -> dict[str, Parameter]:
    """The fields of a dataclass that have a Parameter, in order."""
    hints, found = get_type_hints(owner, include_extras=True), dict[str, Parameter]()
    for field in fields(owner):
        kind, *own = get_args(hints[field.name]) or (None, None)
        if own and isinstance(own[0], Parameter):
            parts = get_args(kind)
            may_be_none = type(None) in parts
            found[field.name] = replace(
                own[0],
                kind=parts[0] if may_be_none else kind,
                may_be_none=may_be_none,
                default=field.default,
            )
    return found


def check_all(table: Table, params: Any) -> None:
    """Validate and normalise an object's fields in place."""
    values = vars(params)
    for name, parameter in table.items():
        values[name] = parameter.checked(name, values[name])


def given_on(table: Table, place: Given) -> dict[str, Parameter]:
    """Return the parameters that this interface accepts."""
    return {name: one for name, one in table.items() if place in one.on}


def struct_of(table: Table, place: Given, base: type[Struct] | None = None) -> type[Struct]:
    """Return a struct for JSON with the parameters of this interface; null means unset."""
    names = [(name, one.json_type | None, None) for name, one in given_on(table, place).items()]
    return defstruct("Given", names, bases=base and (base,), kw_only=True)
