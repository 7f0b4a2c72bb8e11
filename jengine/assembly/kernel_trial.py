"""Checks GPU kernels that have no interpreter against XLA, at the first start on a kind of device.

In: the runner's settings and the model's config. Out: the settings, without kernels that gave wrong
results.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jengine
from jengine.assembly.prompt_kernels import runs_elsewhere
from jengine.config import AttentionConfig, ModelConfig
from jengine.models.attention import Attention, ReadingAttention
from jengine.private_files import write_private
from jengine.runner.runner_config import RunnerConfig
from pallas_kernels.fa4.rules import PACKAGES
from pallas_kernels.fa4.trial import Trial, difference
from sharding.placement import Placement

logger = logging.getLogger(__name__)
PREFIX = "jengine-kernels-agree-"


def with_right_kernels(
    steps: RunnerConfig, config: ModelConfig, placement: Placement,
    drafter: nnx.Module | None = None, compare: Callable[[Trial], str | None] = difference,
) -> RunnerConfig:  # fmt: skip
    """The settings, without prefill kernels that disagree with XLA. `drafter`: declarations of the
    draft model, which runs in the same steps."""
    prompts = steps.shapes.prompts
    if prompts is None:
        return steps
    mixers = mixers_of(config, drafter)
    for trial in sorted(set(trials(steps, mixers, placement)), key=str):
        if problem := kept_problem(trial, compare):
            logger.warning(
                "Prompts run on %s: the kernels of %s failed their comparison with XLA on this "
                "device (%s): %s. Please report this.",
                steps.shapes.attention, prompts, trial, problem,
            )  # fmt: skip
            return replace(steps, shapes=replace(steps.shapes, prompts=None))
    return steps


def mixers_of(config: ModelConfig, drafter: nnx.Module | None) -> Iterable[Any]:
    """Mixer configs of all layers, draft heads included."""
    for layer in config.layers:
        yield from layer.mixers
    for _, module in () if drafter is None else nnx.iter_modules(drafter):
        if isinstance(module, Attention | ReadingAttention):
            yield module.config


def trials(steps: RunnerConfig, mixers: Iterable[Any], placement: Placement) -> Iterable[Trial]:
    """Attention calls to check, with one device's shapes."""
    dtype, parts = jnp.dtype(steps.cache_dtype).name, placement.ways("block_tokens")
    block_size = steps.shapes.block_size // parts
    queries = "queries_of_kv_head" if parts == 1 else "queries_of_block"
    for mixer in mixers:
        if not isinstance(mixer, AttentionConfig) or runs_elsewhere(mixer):
            continue
        kv_heads = mixer.num_kv_heads // placement.ways_of("kv_heads", mixer.num_kv_heads)
        group = mixer.group // placement.ways_of(queries, mixer.group)
        trial = Trial(
            kv_heads * group, kv_heads, mixer.head_dim, block_size, mixer.window,
            mixer.scale, mixer.sinks, dtype, mixer.soft_cap,
        )  # fmt: skip
        if trial.rule is None:
            yield trial


def kept_problem(trial: Trial, compare: Callable[[Trial], str | None]) -> str | None:
    """Run a comparison unless it has succeeded on this kind of device before. Returns the problem,
    or None."""
    record = record_of(trial)
    if record is not None and record.exists():
        return None
    try:
        problem = compare(trial)
    except Exception as error:  # noqa: BLE001 - of the kernels' compiler or the device: Triton runs
        return f"{type(error).__name__}: {error}"
    if problem is None and record is not None:
        keep(record)
    return problem


def record_of(trial: Trial) -> Path | None:
    """Marker file in the compile cache of a successful check; None without a cache."""
    directory = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    if not directory:
        return None
    device = jax.local_devices()[0]
    parts = (jengine.__version__, jax.__version__, sorted(PACKAGES.items()), device.device_kind,
             device.client.platform_version, trial)  # fmt: skip
    return Path(str(directory)) / f"{PREFIX}{hashlib.sha256(repr(parts).encode()).hexdigest()}"


def keep(record: Path) -> None:
    try:
        write_private(record, b"")
    except OSError as error:  # the next start then compares again
        logger.warning("%s cannot be written: %s", record, error)
