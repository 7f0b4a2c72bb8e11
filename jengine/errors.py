"""Every error jengine raises on purpose. Each says what was given, what was expected, what to do.

JengineError
 ├─ ConfigError (ValueError)          the engine cannot be built like this
 ├─ RequestError (ValueError)         this request is refused; the engine goes on
 │   └─ ContextOverflow               ... as its prompt is longer than the model's context
 ├─ CapacityError (RuntimeError)      not enough memory or queue room right now
 │   └─ EngineAsleep                  ... as the engine was put to sleep
 ├─ CheckpointError (ValueError)      a model folder is missing, damaged or unsafe
 ├─ UnsupportedFeature (NotImplementedError)  a known name whose feature does not exist here
 │   ├─ UnsupportedAttribute (AttributeError)   ... as an attribute: hasattr() is False
 │   └─ UnsupportedImport (ImportError)         ... as an import: `except ImportError` takes it
 ├─ UnexpectedCompile (RuntimeError)  strict mode: a program was needed that warm-up did not make
 ├─ StepDropped (RuntimeError)        an interrupt ended an earlier step, so this one never ran
 └─ EngineDead (RuntimeError)         the engine stopped; the cause is chained
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

# Retry-After of requests refused for lack of room, in seconds.
RETRY_AFTER = 1
LFS_POINTER = b"version https://git-lfs.github.com/"


class JengineError(Exception):
    """Base of all errors below."""


class ConfigError(JengineError, ValueError):
    """An engine setting is invalid or conflicts with others."""


class RequestError(JengineError, ValueError):
    """A request is refused. No part of it has entered the engine."""


class ContextOverflow(RequestError):
    """A prompt is too long. Clients of the OpenAI API match the first sentence."""

    def __init__(self, max_model_len: int, what: str) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"{what}, and the answer needs room as well. Shorten the prompt, or raise "
            "max_model_len if the model allows it."
        )


class CapacityError(JengineError, RuntimeError):
    """There is not enough memory or queue room."""


class EngineAsleep(CapacityError):
    """The engine sleeps: its memory is released until `wake_up`."""


class CheckpointError(JengineError, ValueError):
    """A model folder is unreadable or damaged, or would have to run foreign code."""


class UnsupportedFeature(JengineError, NotImplementedError):
    """The name is known, but its feature is not built."""


class UnsupportedAttribute(UnsupportedFeature, AttributeError):
    """An attribute of vLLM that does not exist here."""


class UnsupportedImport(UnsupportedFeature, ImportError):
    """A module of vLLM, or a name in one, that does not exist here."""


class UnexpectedCompile(JengineError, RuntimeError):
    """In strict mode a step needed a program that warm-up had not compiled."""


class StepDropped(JengineError, RuntimeError):
    """A step in a pipeline never ran to its end, since queueing one of the stages failed."""


class EngineDead(JengineError, RuntimeError):
    """The engine has stopped. The first error is the cause of this one."""


def error_named(kind: str, text: str) -> JengineError:
    """Rebuild an error raised in another process from its class name and text."""
    found = globals().get(kind)
    known = isinstance(found, type) and issubclass(found, JengineError)
    return (found if known else JengineError)(text)


def nearest_name(given: str, known: Iterable[str], before: str = "") -> str:
    """A hint such as ` Did you mean 'x'?` for the closest known name, or "". `before`: a prefix for
    the shown name."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.7)
    return f" Did you mean {before + close[0]!r}?" if close else ""


def lfs_advice(file: Path) -> str:
    """Advice for a file that is a Git LFS pointer; "" for other files."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(LFS_POINTER))
    except OSError:
        return ""
    if start != LFS_POINTER:
        return ""
    return (
        f" {file.name} is a Git LFS pointer, not the file itself: run `git lfs pull` in"
        f" {file.parent}."
    )


def unknown_argument(owner: str, given: str, known: Iterable[str]) -> TypeError:
    """The TypeError for a keyword argument that `owner` does not have."""
    names = list(known)
    hint = nearest_name(given, names) or f" Known arguments: {', '.join(sorted(names))}."
    return TypeError(f"{owner} got an unexpected keyword argument {given!r}.{hint}")
