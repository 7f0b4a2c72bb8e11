"""Checks of single settings: choices, sizes, switches, and chat templates in files. No jax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jengine.errors import ConfigError

SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among the choices."""
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
    """Refuse anything that is not True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False.")


def template_text(name: str, given: str | Path) -> str:
    """The text of a chat template: given as text, which has braces, or as the name of a file."""
    if isinstance(given, str) and ("{" in given or "\n" in given):
        return given
    if not isinstance(given, (str, Path)):
        raise ConfigError(f"{name}={given!r}: expected the text of a template, or its file.")
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}={str(given)!r} cannot be read: {error}.") from error


def engine_functions(name: str, given: Any) -> list[Any] | None:
    """Functions, or their names, as a list; None for none."""
    if not given and (given is None or isinstance(given, (list, tuple))):
        return None
    form = f"{name}={given!r:.80}: expected a list of JAX functions f(logits) or f(ids, logits), or"
    form += " of names such as 'package.module:function'."
    if not isinstance(given, (list, tuple)):
        raise ConfigError(form)
    for one in given:
        named = isinstance(one, str) and ":" in one
        if isinstance(one, type) or not (named or callable(one)):
            raise ConfigError(f"{form} It has {one!r:.80}.")
    return list(given)
