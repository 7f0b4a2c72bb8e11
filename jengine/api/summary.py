"""One line about an engine: `repr(llm)`.

In: a built engine, or None after shutdown. Out: text. It never waits
for a device or a worker.
"""

from __future__ import annotations

from jengine.assembly.engine import Engine
from jengine.executor.choice import OWN_PROCESSES
from jengine.runner.step.attention_backend import cache_dtype_name
from jengine.runner.step.group_arrays import each_array


def engine_summary(owner: object, engine: Engine | None) -> str:
    """The class of `owner`, and the engine's model, devices, cache and programs."""
    name = type(owner).__name__
    if engine is None:
        return f"<{name}: shut down>"
    model, cache = engine.model, engine.cache
    source = "live module" if engine.folder is None else str(engine.folder)
    parts = [
        f"{source} ({model.architecture}, {len(model.layers)} layers, {model.dtype})",
        f"context {engine.schedule.max_model_len:,} tokens",
        devices(engine),
        f"cache {(cache.fewest_blocks - 1) * cache.block_size:,} tokens{cache_type(engine)}",
        programs(engine),
    ]
    return f"<{name}: {', '.join(part for part in parts if part)}>"


def devices(engine: Engine) -> str:
    """How many devices of which kind run the steps."""
    if engine.devices is None and engine.args.executor in OWN_PROCESSES:
        return f"{engine.platform} in another process"
    if engine.devices is None:
        return f"devices of {engine.args.executor} workers"
    mesh = engine.placement.mesh
    return f"{mesh.size} x {mesh.devices.flat[0].device_kind}"


def cache_type(engine: Engine) -> str:
    """The number type of the KV cache, where it is in this process."""
    if engine.devices is None:
        return ""
    names = {
        cache_dtype_name(array.dtype): None
        for cache in engine.loaded.programs.compiler.state.caches
        for array in each_array(cache)
    }
    return f" in {' and '.join(names)}"


def programs(engine: Engine) -> str:
    """How many step programs are compiled, how many are still to come, and how many variants are
    compiled for the first request that needs them."""
    if engine.devices is None:
        return ""
    counts = engine.loaded.program_counts()
    to_come = f" and {counts.programs_to_come} to come" if counts.programs_to_come else ""
    late = f", {len(counts.on_first_use)} variants on first use" if counts.on_first_use else ""
    return f"{counts.programs} programs{to_come}{late}"
