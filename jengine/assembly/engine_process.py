"""An engine whose core runs in a process of its own, as the process of the requests has it. No jax.

In: EngineArgs. Out: an Engine, once its core is ready. This process reads the tokenizer, the core
everything else. `core_process` is the core's program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import jengine
from jengine.assembly.args import EngineArgs
from jengine.assembly.engine import Engine
from jengine.assembly.front_side import engine_of
from jengine.assembly.model_facts import ModelSource, generation_of, tokenizer_of
from jengine.assembly.plain_settings import plain_settings, refuse_arrays
from jengine.assembly.progress import progress_factory
from jengine.engine.process.client import START_SECONDS, ProcessClient, Tell
from jengine.engine.process.launch import launch
from jengine.engine.process.messages import Progress
from jengine.errors import ConfigError
from jengine.weights.resolve import resolve_model

CORE_PROGRAM = "jengine.assembly.core_process"
WHERE = "an engine core in a process of its own"
# Settings of requests, of this process, or of how the core is started.
NOT_FOR_CORES = (
    "model", "params", "mesh", "tokenizer", "chat_template", "multiprocess", "show_progress",
    "disable_log_stats", "trust_remote_code",
)  # fmt: skip


def start_engine_process(
    args: EngineArgs,
    tell: Tell | None = None,
    *,
    seconds: float = START_SECONDS,
    cpus: Iterable[int] = (),
) -> Engine:
    """Start a core and return when it is ready. `tell` gets its progress instead of a bar.

    Raises what the core's engine would raise here. `seconds` is how long the core may be silent,
    `cpus` are the processors that it may use (none: all).
    """
    folder = model_folder(args)
    client = launch(CORE_PROGRAM, core_settings(args, folder), list(cpus))
    try:
        return engine_over(args, folder, client, tell or shown(args.show_progress), seconds)
    except BaseException:
        client.shutdown()
        raise


def connect_engine_process(
    address: str, args: EngineArgs, *, seconds: float = START_SECONDS
) -> Engine:
    """An engine over a core that another process has started: `engine.client.address` there.

    Of the settings, only those of requests count. Shutting it down leaves the core running.
    """
    folder = model_folder(args)
    client = ProcessClient(address)
    try:
        return engine_over(args, folder, client, None, seconds)
    except BaseException:
        client.shutdown()
        raise


def model_folder(args: EngineArgs) -> Path:
    """The folder of the model; arrays and modules of this process are refused."""
    refuse_arrays(args, WHERE)
    if not isinstance(args.model, (str, Path)):
        raise ConfigError(
            f"{WHERE}: model is a {type(args.model).__name__}, which is in this process; expected "
            "the path of a folder, or 'demo'. Save it first, or leave multiprocess=True out."
        )
    return resolve_model(args.model).absolute()


def core_settings(args: EngineArgs, folder: Path, **changed: Any) -> bytes:
    """The settings that the core's program takes."""
    dtype = args.dtype if isinstance(args.dtype, str) else np.dtype(args.dtype).name
    plain = plain_settings(
        args, WHERE, NOT_FOR_CORES,
        **{"model": str(folder), "dtype": dtype, "skip_tokenizer_init": True, **changed},
    )  # fmt: skip
    return msgspec.msgpack.encode(plain)


def engine_over(
    args: EngineArgs, folder: Path, client: ProcessClient, tell: Tell | None, seconds: float
) -> Engine:
    """The engine of a core, once that is ready."""
    tokenizer = tokenizer_of(args, folder)  # while the core loads its weights
    ready = client.wait_until_ready(tell, seconds)
    if ready.version != jengine.__version__:
        raise ConfigError(
            f"the core at {client.address} runs jengine {ready.version}, and this process "
            f"{jengine.__version__}. Use the same version in both."
        )
    source = ModelSource(ready.model.config, folder, tokenizer, generation_of(args, folder))
    args = replace(args, model=str(folder))
    return engine_of(args, source, client, ready.schedule, ready.cache, ready.platform)


def shown(wanted: bool | Callable[..., Any] | None) -> Tell:
    """Progress of a core as bars, if this process shows bars."""
    bar = progress_factory(wanted)
    open_bars: dict[str, Any] = {}

    def tell(progress: Progress) -> None:
        if progress.total is None:
            return
        stage = progress.stage
        if stage not in open_bars:
            scale = progress.unit == "B"
            open_bars[stage] = bar(
                total=progress.total, desc=stage, unit=progress.unit, unit_scale=scale
            )
        open_bars[stage].update(progress.done - open_bars[stage].n)
        if progress.done >= progress.total:
            open_bars[stage].close()

    return tell
