"""Validators of SamplingParams fields: each returns the normalised value, or raises
RequestError."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jengine.config import MAX_BAD_WORDS, MAX_LOGPROB_IDS
from jengine.errors import RequestError

MAX_N = 16384
MAX_STOP_STRINGS = 64


def integer(name: str, value: Any, least: int | None, most: int | None = None) -> int:
    """Validate an int within the range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError(f"{name}={value!r}: expected an integer.")
    value = value.__index__()
    if not _within(value, least, most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RequestError(f"{name}={value}: expected an integer {bounds}.")
    return value


def number(name: str, value: Any, least: float | None, most: float | None = None) -> float:
    """Validate a finite float within the range."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise RequestError(f"{name}={value!r}: expected a number.")
    try:
        result = float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise RequestError(f"{name}={value!r}: expected a number.") from error
    if not math.isfinite(result) or not _within(result, least, most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise RequestError(f"{name}={value!r}: expected a finite number {bounds}.")
    return result


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def boolean(name: str, value: Any) -> bool:
    """Validate a bool."""
    if not isinstance(value, bool):
        raise RequestError(f"{name}={value!r}: expected True or False.")
    return value


def logprob_count(name: str, value: Any) -> int | None:
    """Normalise a number of log-probabilities. None: none; 0: the chosen token's only; k: also the
    top k; -1: the whole vocabulary."""
    if value is False:
        return None
    return 1 if value is True else integer(name, value, -1)


def token_ids(name: str, values: Sequence[int]) -> list[int]:
    """Validate a list of non-negative ints."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise RequestError(f"{name}={values!r}: expected a list of token ids.")
    return [integer(f"{name}[{i}]", value, 0, 2**31 - 1) for i, value in enumerate(values)]


def ending_ids(name: str, values: Any) -> list[int]:
    """Validate stop token ids; duplicates are removed."""
    return list(dict.fromkeys(token_ids(name, values or [])))


def some_token_ids(name: str, values: Any) -> list[int]:
    """Validate a non-empty list of token ids."""
    found = token_ids(name, values)
    if not found:
        raise RequestError(f"{name}=[]: expected at least one token id.")
    return found


def logprob_ids(name: str, ids: Any) -> list[int]:
    """Validate `logprob_token_ids`."""
    found = token_ids(name, ids)
    if len(found) > MAX_LOGPROB_IDS:
        raise RequestError(
            f"{name} has {len(found)} ids, which is greater than max allowed: {MAX_LOGPROB_IDS}."
        )
    return found


def check_number_of_ids(ids: Sequence[int] | None, logprobs: int | None) -> None:
    """Raise RequestError unless `logprobs` is unset or the number of `logprob_token_ids`."""
    name = "logprob_token_ids"
    if ids is not None and logprobs not in (None, len(ids)):
        raise RequestError(
            f"{name} has {len(ids)} ids and logprobs={logprobs}. When both logprobs and {name} "
            f"are set, logprobs must equal len({name}); or leave logprobs out."
        )


def stop_strings(name: str, given: Any) -> list[str]:
    """Normalise stop strings to a list."""
    found = [given] if isinstance(given, str) else list(given or [])
    if any(not isinstance(item, str) or not item for item in found):
        raise RequestError(f"{name}={given!r}: expected strings that are not empty.")
    if len(found) > MAX_STOP_STRINGS:
        raise RequestError(f"{name} has {len(found)} strings; the most is {MAX_STOP_STRINGS}.")
    return found


def forbidden_words(name: str, given: Any) -> list[str]:
    """Validate bad words."""
    words = list(given or [])
    if any(not isinstance(word, str) or not word for word in words):
        raise RequestError(f"{name}={given!r}: expected non-empty strings.")
    if len(words) > MAX_BAD_WORDS:
        raise RequestError(f"{name} has {len(words)} entries; the most is {MAX_BAD_WORDS}.")
    return words


def checked_bias(name: str, bias: Any) -> dict[int | str, float]:
    """Validate a logit bias: keys become ints, values are clamped to +-100."""
    if not isinstance(bias, Mapping):
        raise RequestError(f"{name}={bias!r}: expected a dict of token id to number.")
    result: dict[int | str, float] = {}
    for key, value in bias.items():
        token = int(key) if isinstance(key, str) and key.isdigit() else key
        token = integer(f"{name} key", token, 0, 2**31 - 1)
        result[token] = max(-100.0, min(100.0, number(f"{name}[{token}]", value, -1e30, 1e30)))
    return result


def checked_processors(name: str, given: Any) -> list[Callable[..., Any]]:
    """Logits processors as a list; classes are refused, as they serve all requests of an engine."""
    items = [given] if callable(given) else given
    if not isinstance(items, (list, tuple)) or not all(map(callable, items)):
        raise RequestError(
            f"{name}={given!r:.80}: expected a list of JAX functions f(logits) or f(ids, logits)."
        )
    for one in items:
        if isinstance(one, type):
            raise RequestError(
                f"{name} has the class {one.__name__}: processors that run on the host "
                "are the engine's, LLM(logits_processors=[...]), and read a request's extra_args. "
                "Give a JAX function f(logits) or f(ids, logits)."
            )
    return list(items)


def plain_dict(name: str, given: Any) -> dict[str, Any] | None:
    """A copy of msgpack-serialisable data; None if empty."""
    if given == {}:
        return None
    try:
        if isinstance(given, Mapping):
            return msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, RecursionError):
        pass
    raise RequestError(
        f"{name}={given!r:.80}: expected a dict of text to numbers of 64 bits, text, lists "
        "and dicts."
    )
