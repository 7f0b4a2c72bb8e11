"""The calls that workers answer: a table of names with the types of arguments and results.

In: a name and arguments. Out: bytes, and back; nothing else can be called. Must not know where the
workers are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from jengine.errors import RequestError, nearest_name
from jengine.runner.ledger import ProgramCounts
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.reports import (
    DeviceMemory,
    device_memory,
    start_profile,
    stop_profile,
)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a worker writes its profile, on its own host."""

    folder: str


@dataclass(frozen=True)
class WorkerCall:
    """One call that workers answer."""

    arguments: Any
    result: Any
    run: Callable[[LoadedModel, Any], Any]


CALLS = {
    "memory": WorkerCall(Nothing, DeviceMemory, lambda loaded, _: device_memory(loaded)),
    "programs": WorkerCall(Nothing, ProgramCounts, lambda loaded, _: loaded.program_counts()),
    "start_profile": WorkerCall(Profile, None, lambda _, given: start_profile(given.folder)),
    "stop_profile": WorkerCall(Nothing, None, lambda _, __: stop_profile()),
}


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The result or the error of a call in one worker."""

    value: bytes
    problem: str | None = None


def encoded_arguments(method: str, arguments: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a call; unknown names and unfit arguments are refused."""
    if method not in CALLS:
        raise RequestError(
            f"call_workers({method!r}): workers know {', '.join(CALLS)}."
            f"{nearest_name(method, CALLS)}"
        )
    try:
        given = msgspec.convert(dict(arguments), CALLS[method].arguments)
    except msgspec.ValidationError as error:
        raise RequestError(f"call_workers({method!r}): {error}.") from error
    return msgspec.msgpack.encode(given)


def answer(loaded: LoadedModel, method: str, arguments: bytes) -> bytes:
    """Answer a call in this worker. Errors go to the caller and are not raised here."""
    call = CALLS[method]
    given = msgspec.msgpack.decode(arguments, type=call.arguments)
    try:
        value = call.run(loaded, given)
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return msgspec.msgpack.encode(Outcome(b"", f"{type(error).__name__}: {error}"))
    return encoded_answer(value)


def encoded_answer(value: Any) -> bytes:
    """Encode the result of a call."""
    return msgspec.msgpack.encode(Outcome(msgspec.msgpack.encode(value)))


def decoded_answers(method: str, answers: list[bytes]) -> list[Any]:
    """Decode the results of all workers; raises if one failed."""
    outcomes = [msgspec.msgpack.decode(one, type=Outcome) for one in answers]
    for rank, outcome in enumerate(outcomes):
        if outcome.problem is not None:
            raise RequestError(
                f"call_workers({method!r}) failed in worker {rank}: {outcome.problem}"
            )
    kind = CALLS[method].result
    return [msgspec.msgpack.decode(outcome.value, type=kind) for outcome in outcomes]
