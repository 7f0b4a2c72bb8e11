"""What a worker does when it is called; `calls` has the names and types.

In: a name and arguments as bytes. Out: the result as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from jengine.adapters import AdapterReport
from jengine.errors import RequestError
from jengine.executor.calls import CALLS, AddAdapter, Outcome, encoded_answer
from jengine.runner.expert_placement import expert_placement, place_experts
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.profiler import PROFILER
from jengine.runner.reports import device_memory
from jengine.runner.sleep import put_to_sleep, reload, wake


def no_recording(_: LoadedModel, __: Any) -> str:
    """A flight recorder would have answered before."""
    raise RequestError(
        "this engine keeps no recording of its steps. Create it with flight_recorder=FOLDER."
    )


def add_adapter(loaded: LoadedModel, given: AddAdapter) -> AdapterReport:
    """Read an adapter into this process's memory."""
    store = loaded.adapter_store
    if given.folder:
        digest, adapter = store.add_files(given.folder)
    else:
        matrices = {
            one.name: np.frombuffer(one.data, np.float32).reshape(one.shape)
            for one in given.matrices
        }
        digest, adapter = store.add_live(matrices, given.alpha, stabilized=given.use_rslora)
    return AdapterReport(digest, adapter.rank, adapter.nbytes, len(adapter.parts))


def resized(loaded: LoadedModel, num_bytes: int) -> list[int]:
    """The blocks of each group after the cache was given so many bytes."""
    assert loaded.resizing is not None, "set when the model was built"
    return loaded.resizing.resize(loaded, num_bytes)


RUN: dict[str, Callable[[LoadedModel, Any], Any]] = {
    "memory_profile": lambda _, __: PROFILER.memory(),
    "memory": lambda loaded, _: device_memory(loaded),
    "programs": lambda loaded, _: loaded.program_counts(),
    "reload_weights": lambda loaded, _: reload(loaded),
    "expert_placement": lambda loaded, _: expert_placement(loaded),
    "place_experts": lambda loaded, given: place_experts(loaded, given.layers),
    "resize_cache": lambda loaded, given: resized(loaded, given.num_bytes),
    "sleep": lambda loaded, given: put_to_sleep(loaded, given.level, given.tags),
    "start_profile": lambda _, given: PROFILER.start(given.folder),
    "stop_profile": lambda _, __: PROFILER.stop(),
    "wake_up": lambda loaded, given: wake(loaded, given.tags),
    "write_recording": no_recording,
    "add_adapter": add_adapter,
    "drop_adapter": lambda loaded, given: loaded.adapter_store.drop(given.digest),
}


def answer(loaded: LoadedModel, method: str, arguments: bytes) -> bytes:
    """Answer a call in this worker. Errors go to the caller and are not raised here."""
    given = msgspec.msgpack.decode(arguments, type=CALLS[method].arguments)
    try:
        value = (CALLS[method].run or RUN[method])(loaded, given)
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return msgspec.msgpack.encode(Outcome(b"", f"{type(error).__name__}: {error}"))
    return encoded_answer(value)
