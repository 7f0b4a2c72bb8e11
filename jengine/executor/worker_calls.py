"""What a worker does when it is called; `calls` has the names and types.

In: a name and arguments as bytes. Out: the result as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jengine.errors import RequestError
from jengine.executor.calls import CALLS, Outcome, encoded_answer
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.profiler import PROFILER
from jengine.runner.reports import device_memory


def no_recording(_: LoadedModel, __: Any) -> str:
    """A flight recorder would have answered before."""
    raise RequestError(
        "this engine keeps no recording of its steps. Create it with flight_recorder=FOLDER."
    )


RUN: dict[str, Callable[[LoadedModel, Any], Any]] = {
    "memory": lambda loaded, _: device_memory(loaded),
    "programs": lambda loaded, _: loaded.program_counts(),
    "start_profile": lambda _, given: PROFILER.start(given.folder),
    "stop_profile": lambda _, __: PROFILER.stop(),
    "write_recording": no_recording,
}


def answer(loaded: LoadedModel, method: str, arguments: bytes) -> bytes:
    """Answer a call in this worker. Errors go to the caller and are not raised here."""
    given = msgspec.msgpack.decode(arguments, type=CALLS[method].arguments)
    try:
        value = (CALLS[method].run or RUN[method])(loaded, given)
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return msgspec.msgpack.encode(Outcome(b"", f"{type(error).__name__}: {error}"))
    return encoded_answer(value)
