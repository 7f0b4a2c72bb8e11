"""Implementations of the worker RPCs declared in `calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jengine.adapters import AdapterReport
from jengine.errors import RequestError
from jengine.runner.expert_placement import expert_placement, place_experts
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.profiler import PROFILER
from jengine.runner.reports import device_memory
from jengine.runner.sleep import put_to_sleep, reload, wake


def no_recording(_: LoadedModel) -> str:
    """Refused: with a flight recorder the call would have been answered before it got here."""
    raise RequestError(
        "this engine keeps no recording of its steps. Create it with flight_recorder=FOLDER."
    )


def add_adapter(
    loaded: LoadedModel,
    folder: str,
    matrices: Mapping[str, np.ndarray],
    alpha: float | None,
    use_rslora: bool,
) -> AdapterReport:
    """Load a LoRA adapter into this process's memory."""
    store = loaded.adapter_store
    if folder:
        digest, adapter = store.add_files(folder)
    else:
        digest, adapter = store.add_live(matrices, alpha, stabilized=use_rslora)
    return AdapterReport(digest, adapter.rank, adapter.nbytes, len(adapter.parts))


def resized(loaded: LoadedModel, num_bytes: int) -> list[int]:
    """Resize the KV cache; returns the blocks of each group."""
    assert loaded.resizing is not None, "set when the model was built"
    return loaded.resizing.resize(loaded, num_bytes)


# What each call runs, of the loaded model and the fields of its arguments.
RUN: dict[str, Callable[..., Any]] = {
    "memory_profile": lambda _: PROFILER.memory(),
    "memory": device_memory,
    "programs": LoadedModel.program_counts,
    "reload_weights": reload,
    "expert_placement": expert_placement,
    "place_experts": place_experts,
    "resize_cache": resized,
    "sleep": put_to_sleep,
    "start_profile": lambda _, folder: PROFILER.start(folder),
    "stop_profile": lambda _: PROFILER.stop(),
    "wake_up": wake,
    "write_recording": no_recording,
    "add_adapter": add_adapter,
    "drop_adapter": lambda loaded, digest: loaded.adapter_store.drop(digest),
}
