"""A plan on paper: a model on devices that need not be here, and the work that it is given.

In: what a user says on the command line. Out: Paper. paper_report.py shows it as text or JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jengine.assembly.mesh_placement import beyond_context_parallel, check_divided
from jengine.assembly.prompt_kernels import on_paper
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.combinations import refuse_together
from jengine.assembly.sizes.device_defaults import DEVICE_DEFAULTS, block_tokens
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.capacity.accelerators import Accelerator
from jengine.capacity.assumptions import Assumptions
from jengine.capacity.cpu_nodes import assumed_of
from jengine.capacity.device_layout import DeviceLayout, checked_layout
from jengine.capacity.device_memory import Memory
from jengine.capacity.step_estimate import StepWork, Timing
from jengine.config import ExpertsConfig, ModelConfig
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature, nearest_name
from jengine.hub.options import HubOptions
from jengine.hub.wanted import CONFIG_FILE
from jengine.models.quantized import with_quantization
from jengine.models.reading.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.weights.abstract import with_dtype
from jengine.weights.folder import read_model_config
from jengine.weights.resolve import resolve_model

BITS_A_BYTE = 8
USUAL_TP = (1, 2, 4, 8, 16, 32, 64)
USUAL_CONTEXT = 4096
GIGA = 1e9


@dataclass(frozen=True)
class Paper:
    """Memory and step times, and whether the work fits."""

    name: str
    timing: Timing
    work: StepWork

    @property
    def memory(self) -> Memory:
        """Memory of one device."""
        return self.timing.memory

    @property
    def fits(self) -> bool:
        """Whether model and requests have room."""
        return self.requests >= self.work.batch

    @cached_property
    def smallest_tp(self) -> int | None:
        """The smallest usual --tp with which the work fits, or None."""
        old = self.memory.layout
        for tp in USUAL_TP:
            try:
                layout = checked_layout(tp, old.pp, old.dp, ep=old.ep, dcp=old.dcp, pcp=old.pcp)
            except ConfigError:  # no hosts can have it
                continue
            memory = dataclasses.replace(self.memory, layout=layout)
            other = Paper(self.name, dataclasses.replace(self.timing, memory=memory), self.work)
            if other.fits:
                return tp
        return None

    @property
    def requests(self) -> int:
        """Requests of the average length that have room in a replica, which holds what they share
        once."""
        once = self.memory.held_once(self.work.shared)
        each = self.memory.request_bytes(self.work.context) - once
        return max(self.memory.cache - once, 0) // each


def paper_plan(
    model: str,
    settings: Mapping[str, Any],
    device: Accelerator,
    layout: DeviceLayout,
    work: tuple[int, int | None],
    network: float,
    shared: int = 0,
    balancedness: float = 1.0,
) -> Paper:
    """Calculate for a folder or a published shape.

    `work`: requests per replica, and tokens of each; None: a default, at most the model's context.
    `shared`: leading tokens that all requests share. `balancedness`: mean over maximum load of the
    devices that share the experts.
    """
    batch, given = work
    context = USUAL_CONTEXT if given is None else given
    for name, value in (("batch", batch), ("context", context), ("network", network)):
        if value < 1:
            raise ConfigError(f"--{name} {value}: expected 1 or more.")
    args = EngineArgs.checked("jengine", model=model, **settings)
    config = with_quantization(with_dtype(config_of(model), args.dtype), args.quantization)
    schedule = schedule_config(
        args.groups, config, DEVICE_DEFAULTS["cpu" if device.cores else "gpu"]
    )
    if given is None:
        context = min(context, schedule.max_model_len)
    if context > schedule.max_model_len:
        raise ConfigError(
            f"--context {context}: this model takes at most {schedule.max_model_len} tokens."
        )
    if not 0 <= shared < context:
        raise ConfigError(
            f"--shared {shared}: expected fewer tokens than the {context:,} of a request."
        )
    schedule = dataclasses.replace(schedule, max_num_seqs=max(batch, schedule.max_num_seqs))
    check_experts(config, layout.ep)
    check_context(config, layout)
    if layout.pp > len(config.layers):
        raise ConfigError(f"--pp {layout.pp}: this model has only {len(config.layers)} layers.")
    usable = int(device.memory * args.gpu_memory_utilization)
    block_size = block_tokens(on_paper(args.groups, config, device.capability)) * layout.dcp
    if args.cpu_offload_gb and layout.pp > 1:
        raise UnsupportedFeature(
            f"--cpu-offload-gb with --pp {layout.pp}: stages keep their layers on their devices."
        )
    memory = Memory(
        config, layout, schedule, block_size, usable, args.cache_codes, args.cpu_offload_gb,
    )  # fmt: skip
    own = assumed_of(device.cores, config.hidden_size, batch) if device.cores else {}
    assumed = Assumptions(network=network * GIGA / BITS_A_BYTE, expert_load=1 / balancedness, **own)
    prefill = schedule.largest_chunk
    return Paper(model, Timing(memory, device, assumed), StepWork(batch, context, prefill, shared))


def check_experts(config: ModelConfig, ep: int) -> None:
    """Refuse to spread experts that are not there, or not evenly."""
    counts = {layer.ffn.num_experts for layer in config.layers
              if isinstance(layer.ffn, ExpertsConfig)}  # fmt: skip
    if ep and (not counts or any(count % ep for count in counts)):
        found = ", ".join(map(str, sorted(counts))) or "no"
        raise ConfigError(
            f"--ep {ep}: this model has {found} experts in a layer, and each device gets as many."
        )


def check_context(config: ModelConfig, layout: DeviceLayout) -> None:
    """Refuse to divide tokens of a model for which engines do not."""
    check_divided(config, layout.dcp)
    if layout.pcp > 1:
        refuse_together(f"--pcp {layout.pcp}", beyond_context_parallel(config))


def config_of(model: str) -> ModelConfig:
    """The shape of a model: published, or of a folder whose weights are not read."""
    if model in PUBLISHED:
        return model_config(PUBLISHED[model])
    try:
        return read_model_config(resolve_model(model, HubOptions(wanted=CONFIG_FILE)))
    except CheckpointError as error:
        if Path(model).expanduser().is_dir():
            raise
        known = f" Or name a shape: {', '.join(PUBLISHED)}.{nearest_name(model, PUBLISHED)}"
        raise CheckpointError(f"{error}{known}") from error
