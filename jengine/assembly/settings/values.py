"""Checks of single settings: choices, sizes, switches, and chat templates in files. No jax."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jengine.errors import ConfigError
from jengine.logits_processor import LogitsProcessor

SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
LISTS = (Sequence, tuple, list)
NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}
IN_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "True or False",
            Path: "a path", Any: "anything"}  # fmt: skip


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ConfigError for a value that is not among the choices."""
    if value not in choices:
        raise ConfigError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}.")


def human_integer(name: str, value: int | str | None) -> int | None:
    """A positive int from 4096, '4096', '32k' (32,000) or '32K' (32,768)."""
    if value is None:
        return None
    problem = ConfigError(f"{name}={value!r}: expected a positive integer such as 4096 or '32K'.")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise problem
    if isinstance(value, str):
        scale = SUFFIXES.get(value[-1:], 1)
        try:
            value = round(float(value[:-1] if scale != 1 else value) * scale)
        except (ValueError, OverflowError) as error:
            raise problem from error
    if value < 1:
        raise problem
    return value


def switch(name: str, value: Any) -> None:
    """Raise ConfigError for anything but True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False.")


def share(name: str, value: Any) -> None:
    """Raise ConfigError for anything but a number in (0, 1]."""
    if not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ConfigError(f"{name}={value!r}: expected a share in (0, 1].")


def count_or_all(name: str, value: Any) -> None:
    """Raise ConfigError unless it is a count, or -1 (the whole vocabulary)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}={value!r}: expected an integer.")
    if value < -1:
        raise ConfigError(f"{name}={value}: expected 0 or more, or -1 for the vocabulary.")


@functools.cache
def field_types(owner: type[Any]) -> dict[str, Any]:
    return get_type_hints(owner)


def check_types(settings: Any) -> None:
    """Raise ConfigError for values that do not have their field's type."""
    for name, kind in field_types(type(settings)).items():
        value = getattr(settings, name, None)
        if kind is bool:
            switch(name, value)
        elif get_origin(kind) is Literal:
            one_of(name, value, get_args(kind))
        elif kind is not KW_ONLY and not fits(value, kind):
            raise ConfigError(f"{name}={value!r:.200}: expected {described(kind)}.")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type. A string is not a list here, and a bool not a number."""
    parts = get_args(kind)
    if kind is Any:
        return True
    if get_origin(kind) in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if get_origin(kind) is Literal:
        return value in parts
    if get_origin(kind) is Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, parts[0]) and fits(one, parts[1]) for key, one in value.items()
        )
    if get_origin(kind) in LISTS:
        return isinstance(value, (list, tuple)) and all(fits(one, parts[0]) for one in value)
    if kind in NUMBERS:
        return isinstance(value, NUMBERS[kind]) and not isinstance(value, bool)
    return isinstance(value, kind)


def described(kind: Any) -> str:
    """A type in words, for errors."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(described(part) for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) in LISTS:
        return f"a list, each of it {described(get_args(kind)[0])}"
    if get_origin(kind) is Mapping:
        values = get_args(kind)[1]
        return "a dict" if values is Any else f"a dict, each of its values {described(values)}"
    return IN_WORDS.get(kind, str(kind))


def template_text(name: str, given: str | Path) -> str:
    """A chat template's text: `given` if it has braces, else the contents of that file."""
    if isinstance(given, str) and ("{" in given or "\n" in given):
        return given
    if not isinstance(given, (str, Path)):
        raise ConfigError(f"{name}={given!r}: expected the text of a template, or its file.")
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}={str(given)!r} cannot be read: {error}.") from error


def engine_functions(name: str, given: Any) -> list[Any] | None:
    """Logits processors (functions, classes or their names) as a list; None for none."""
    if not given and (given is None or isinstance(given, (list, tuple))):
        return None
    form = f"{name}={given!r:.80}: expected a list of JAX functions f(logits) or f(ids, logits), of"
    form += " classes derived from jengine.LogitsProcessor, or of names as 'package.module:name'."
    if not isinstance(given, (list, tuple)):
        raise ConfigError(form)
    for one in given:
        fits = ":" in one if isinstance(one, str) else callable(one)
        if not fits or (isinstance(one, type) and not issubclass(one, LogitsProcessor)):
            raise ConfigError(f"{form} It has {one!r:.80}.")
    return list(given)
