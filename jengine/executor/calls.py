"""The RPCs that workers answer: a table of method names with argument and result types.

In: a method's name and arguments. Out: both encoded as bytes, and decoded results. Workers answer
no other calls. `local` implements them. Must not know where the workers are, or jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from jengine.adapters import AdapterReport
from jengine.errors import ConfigError, RequestError, nearest_name
from jengine.runner.report_types import DeviceMemory, ProgramCounts
from jengine.wire.arrays import unpack_array
from jengine.wire.message import encode


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str  # on the worker's host


class SleepCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Level 1 offloads parameters to the host, level 2 drops them. `tags`: weights, kv_cache."""

    level: int
    tags: list[str]


class Wake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tags: list[str]


class AddAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter: a folder with PEFT's files on the worker's host, or a trainer's matrices."""

    folder: str
    matrices: dict[str, np.ndarray] = {}
    alpha: float | None = None  # of the matrices; None: already scaled
    use_rslora: bool = False


class DropAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    num_bytes: int


class PlaceExperts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expert held by each slot, per MoE layer."""

    layers: list[list[int]]


@dataclass(frozen=True)
class WorkerCall:
    """Signature of an RPC to the workers. `run` is the implementation of a call that a plugin
    registered."""

    arguments: Any
    result: Any
    run: Callable[[Any, Any], Any] | None = None
    each_replica: bool = False  # call every replica of a process, not only the first
    seconds: float = 120.0  # deadline of the workers' answers
    by: str | None = None  # the LLM method that makes this call; users' call_workers is refused


CALLS = {
    "memory": WorkerCall(Nothing, DeviceMemory),
    "programs": WorkerCall(Nothing, ProgramCounts),
    "write_recording": WorkerCall(Nothing, str),
    "start_profile": WorkerCall(Profile, None),
    "stop_profile": WorkerCall(Nothing, None),
    "memory_profile": WorkerCall(Nothing, bytes),
    # sleep, wake_up and reload_weights return the tags asleep; resize_cache, blocks per group.
    "sleep": WorkerCall(SleepCall, list[str], each_replica=True, seconds=600, by="sleep"),
    "wake_up": WorkerCall(Wake, list[str], each_replica=True, seconds=600, by="wake_up"),
    "resize_cache": WorkerCall(Resize, list[int], by="resize_cache"),
    "reload_weights": WorkerCall(
        Nothing, list[str], each_replica=True, seconds=3600, by="reload_weights"
    ),
    # Returns the previous placement.
    "place_experts": WorkerCall(PlaceExperts, list[list[int]]),
    "expert_placement": WorkerCall(Nothing, list[list[int]]),
    "add_adapter": WorkerCall(AddAdapter, AdapterReport),
    "drop_adapter": WorkerCall(DropAdapter, bool),
}


def register_call(
    name: str, run: Callable[[Any, Any], Any], arguments: Any = Nothing, result: Any = Any
) -> None:
    """Register a worker RPC. A plugin must call this in every process.

    `run` is given the loaded model and the arguments, a msgspec.Struct of the type `arguments`; its
    result must be plain data of the type `result`.
    """
    known = CALLS.get(name)
    if known is not None and known.run is not run:
        raise ConfigError(f"register_call({name!r}): there is a call of this name already.")
    CALLS[name] = WorkerCall(arguments, result, run)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The encoded result, or the error, of a call in one worker."""

    value: bytes
    problem: str | None = None


def decoded_arguments(method: str, data: bytes) -> Any:
    return msgspec.msgpack.decode(data, type=CALLS[method].arguments, ext_hook=unpack_array)


def encoded_arguments(method: str, arguments: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Validate and encode the arguments of a call. Raises RequestError for an unknown name or unfit
    arguments."""
    if method not in CALLS:
        raise RequestError(
            f"call_workers({method!r}): workers answer {', '.join(CALLS)}."
            f"{nearest_name(method, CALLS)}"
        )
    try:
        given = msgspec.convert(dict(arguments), CALLS[method].arguments)
    except msgspec.ValidationError as error:
        raise RequestError(f"call_workers({method!r}): {error}.") from error
    return encode(given)


def encoded_answer(value: Any) -> bytes:
    return msgspec.msgpack.encode(Outcome(msgspec.msgpack.encode(value)))


def encoded_problem(error: Exception) -> bytes:
    return msgspec.msgpack.encode(Outcome(b"", f"{type(error).__name__}: {error}"))


def decoded_answers(method: str, answers: list[bytes], what: str | None = None) -> list[Any]:
    """Decode the results of all workers. Raises RequestError if one failed; `what` replaces the
    call's name in that error."""
    outcomes = [msgspec.msgpack.decode(one, type=Outcome) for one in answers]
    for rank, outcome in enumerate(outcomes):
        if outcome.problem is not None:
            failed = what or f"call_workers({method!r}) failed in worker {rank}"
            raise RequestError(f"{failed}: {outcome.problem}")
    kind = CALLS[method].result
    return [msgspec.msgpack.decode(outcome.value, type=kind) for outcome in outcomes]
