"""Recording of steps: an engine's flight recorder, and settings to replay a recording.

In: settings and sizes of an engine. Out: an executor wrapper with a flight recorder; and from a
recording, the settings of an engine of the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import jengine
from jengine.assembly.model_source import ModelSource
from jengine.assembly.settings.watch_args import WatchSettings
from jengine.config import CacheConfig, ScheduleConfig
from jengine.errors import ConfigError
from jengine.executor.flight_recorder import FlightRecorder
from jengine.executor.protocol import Executor
from jengine.executor.recording import Origin, Recording


def recorder_for(
    asked: WatchSettings, source: ModelSource, schedule: ScheduleConfig, cache: CacheConfig
) -> Callable[[Executor], Executor]:
    """Wrapper that puts a flight recorder around an executor; the identity without
    `flight_recorder`."""
    folder, steps = asked.flight_recorder, asked.flight_recorder_steps
    if folder is None:
        return lambda executor: executor
    settings = msgspec.to_builtins(asked.recorded)
    origin = Origin(
        version=jengine.__version__,
        model="" if source.folder is None else str(source.folder.absolute()),
        settings={**settings, "dtype": source.config.dtype},
        schedule=schedule,
        cache=cache,
    )
    place = Path(folder).expanduser().absolute()
    return lambda executor: FlightRecorder(executor, origin, place, steps)


def sizes_of(schedule: ScheduleConfig, cache: CacheConfig) -> dict[str, Any]:
    """Settings that give an engine this schedule and at least this cache."""
    return {
        "max_model_len": schedule.max_model_len,
        "max_num_seqs": schedule.max_num_seqs,
        "max_num_batched_tokens": schedule.max_num_batched_tokens,
        "block_size": cache.block_size,
        "num_gpu_blocks_override": max(cache.num_blocks),
    }


def replay_settings(recording: Recording, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the engine that replays a recording, with the user's changes."""
    fixed = sizes_of(recording.origin.schedule, recording.origin.cache)
    for name in sorted(fixed.keys() & changed.keys()):
        raise ConfigError(
            f"{name}: plans fit only the sizes of the engine that made them. Leave it out. What "
            "may differ are devices and kernels: tensor_parallel_size, attention_backend ..."
        )
    model = changed.get("model") or recording.origin.model
    if not model:
        raise ConfigError("the recording is of a live model; give --model with its folder.")
    return {**recording.origin.settings, **fixed, **changed, "model": model}


def check_fits(recording: Recording, schedule: ScheduleConfig, cache: CacheConfig) -> None:
    """Raise ConfigError if the engine cannot run the recorded plans."""
    then = recording.origin
    if then.cache.groups != cache.groups:
        raise ConfigError(
            "the model's KV cache is not the recorded one. Give the model of the recording: "
            f"{then.model or 'it was live'}."
        )
    enough = all(map(int.__ge__, cache.num_blocks, then.cache.num_blocks))
    if cache.block_size != then.cache.block_size or not enough:
        raise ConfigError(
            f"the cache has {cache.num_blocks} blocks of {cache.block_size} tokens; the recording "
            f"needs {then.cache.num_blocks} of {then.cache.block_size}."
        )
    if schedule.prefill_tile != then.schedule.prefill_tile:
        raise ConfigError(
            f"prefill chunks have tiles of {schedule.prefill_tile} tokens here, and of "
            f"{then.schedule.prefill_tile} in the recording. Use the same kind of device."
        )
