"""A plan on paper: memory, communication and step times of a model on devices, and assumptions.

In: what a user says on the command line. Out: Paper, as text or JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jengine.assembly.args import EngineArgs
from jengine.assembly.sizes import BLOCK_SIZE, DEVICE_DEFAULTS, schedule_config
from jengine.config import ModelConfig
from jengine.errors import CheckpointError, ConfigError, nearest_name
from jengine.models.published import PUBLISHED
from jengine.models.registry import model_config
from jengine.planning.accelerators import Accelerator
from jengine.planning.device_memory import Memory, gigabytes
from jengine.planning.layout import checked_layout
from jengine.planning.timing import Assumptions, StepTime, Timing, Work
from jengine.weights.abstract import with_dtype
from jengine.weights.folder import read_model_config
from jengine.weights.resolve import resolve_model

BITS_A_BYTE = 8
USUAL_TP = (1, 2, 4, 8, 16, 32, 64)
USUAL_CONTEXT = 4096
GIGA = 1e9


@dataclass(frozen=True)
class Paper:
    """The result of a calculation, as text or JSON."""

    name: str
    timing: Timing
    work: Work

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
        """The smallest --tp of the usual ones with which the work fits, if some does."""
        for tp in USUAL_TP:
            try:
                layout = checked_layout(tp, self.memory.layout.pp, self.memory.layout.dp, None)
            except ConfigError:  # no hosts can have it
                continue
            memory = dataclasses.replace(self.memory, layout=layout)
            other = Paper(self.name, dataclasses.replace(self.timing, memory=memory), self.work)
            if other.fits:
                return tp
        return None

    @property
    def requests(self) -> int:
        """Requests of the average length that have room in a replica."""
        return max(self.memory.cache, 0) // self.memory.request_bytes(self.work.context)

    def as_json(self) -> dict[str, Any]:
        """For programs: bytes, seconds, tokens a second."""
        memory, timing = self.memory, self.timing
        decode, prefill = timing.decode(self.work), timing.prefill(self.work)
        return {
            "model": self.name,
            "dtype": memory.config.dtype,
            "device": dataclasses.asdict(timing.device),
            "layout": dataclasses.asdict(memory.layout),
            "work": dataclasses.asdict(self.work),
            "fits": self.fits,
            "bytes_a_device": {
                "usable": memory.usable,
                "weights": memory.weights,
                "row_state": memory.row_state,
                "scratch": memory.scratch,
                "cache": memory.cache,
                "cache_token": memory.token_bytes,
            },
            "cache_tokens": max(memory.cache, 0) // memory.token_bytes,
            "requests_that_fit": self.requests,
            "smallest_tp": self.smallest_tp,
            "decode": self._as_json(decode),
            "prefill": self._as_json(prefill),
            "seconds_a_token": memory.layout.pp * decode.expected,
            "decode_tokens_a_second": timing.tokens_a_second(self.work, decode.expected),
            "prefill_tokens_a_second": memory.layout.dp * prefill.tokens / prefill.expected,
            "assumptions": list(self._assumptions()),
        }

    @staticmethod
    def _as_json(step: StepTime) -> dict[str, Any]:
        return {**dataclasses.asdict(step), "over_floor": step.expected / step.floor}

    def __str__(self) -> str:
        parts = (self._heading(), self._memory(), self._advice(), self._times(), self._notes())
        return "\n".join(line for part in parts for line in part)

    def _heading(self) -> Iterator[str]:
        config, layout = self.memory.config, self.memory.layout
        device = self.timing.device
        shape = f"{config.architecture}, {len(config.layers)} layers, {config.dtype}"
        yield f"{self.name} ({shape}) on {layout.devices} x {device.name}"
        hosts = "1 host" if layout.hosts == 1 else f"{layout.hosts} hosts"
        yield (
            f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp}, {hosts} of "
            f"{layout.devices_a_host}; {self.work.batch} requests a replica, "
            f"{self.work.context:,} tokens each"
        )

    def _memory(self) -> Iterator[str]:
        memory, device = self.memory, self.timing.device
        share = memory.usable / device.memory
        yield ""
        yield "Memory of one device"
        yield row("usable", gigabytes(memory.usable), f"{share:.0%} of {gigabytes(device.memory)}")
        detail = f"layers {memory.stage[0]} to {memory.stage[-1]}" * (memory.layout.pp > 1)
        yield row("weights", gigabytes(memory.weights), detail)
        rows = memory.schedule.sampler_rows
        detail = f"penalties, biases and masks of {rows} requests"
        yield row("row state", gigabytes(memory.row_state), detail)
        step = f"a step of {memory.schedule.max_num_batched_tokens:,} tokens, estimated"
        yield row("scratch", gigabytes(memory.scratch), step)
        if memory.cache <= 0:
            yield row("cache", "nothing", f"{gigabytes(-memory.cache)} too much: it does not fit")
            return
        yield row("cache", gigabytes(memory.cache), f"{gigabytes(memory.token_bytes)} a token")
        yield row("", f"{memory.cache // memory.token_bytes:,}", "tokens fit")
        fit = f"requests of {self.work.context:,} tokens fit"
        yield row("", f"{self.requests:,}", fit if self.fits else f"{fit}: fewer than asked for")

    def _advice(self) -> Iterator[str]:
        if self.fits:
            return
        yield ""
        if self.smallest_tp is None:
            most = USUAL_TP[-1]
            yield f"It does not fit with --tp up to {most} either: lower --batch or --context."
        else:
            yield f"The smallest --tp that fits is {self.smallest_tp}."

    def _times(self) -> Iterator[str]:
        if not self.fits:
            return
        timing, layout = self.timing, self.memory.layout
        decode, prefill = timing.decode(self.work), timing.prefill(self.work)
        yield from step_rows(f"Decode: a step of {decode.tokens} requests", decode)
        each = layout.pp * decode.expected
        yield row("a token", milliseconds(each), f"for one request: {1 / each:,.0f} tokens/s")
        total = timing.tokens_a_second(self.work, decode.expected)
        yield row("together", f"{total:,.0f}", "tokens/s of all replicas")
        yield from step_rows(f"Prefill: a step of {prefill.tokens:,} prompt tokens", prefill)
        total = layout.dp * prefill.tokens / prefill.expected
        yield row("together", f"{total:,.0f}", "prompt tokens/s of all replicas")

    def _notes(self) -> Iterator[str]:
        yield ""
        yield "Assumptions"
        yield from (f"  - {line}" for line in self._assumptions())

    def _assumptions(self) -> Iterator[str]:
        assumed, device, layout = self.timing.assumed, self.timing.device, self.memory.layout
        yield (
            f"{device.name}: {device.bandwidth / 1e12:.2f} TB/s, {device.flops / 1e12:,.0f} "
            f"TFLOP/s bfloat16, {device.link_name} {device.link / GIGA:,.0f} GB/s one way "
            f"({device.source})"
        )
        yield (
            f"expected: {assumed.bandwidth_share:.0%} of that bandwidth and "
            f"{assumed.flops_share:.0%} of that arithmetic are reached; the floor takes all of it"
        )
        yield (
            f"{assumed.launches_a_layer} kernels a layer, {assumed.between_launches * 1e6:g} us "
            "between two (the number as compiled for an H200; the time is not measured)"
        )
        yield "scratch: 6 hidden states and 3 MLP widths a token, 3 rows of logits, in float32"
        if layout.tp > 1:
            yield (
                "all-reduces: two per layer and one for the embedding, float32 hidden states, ring "
                f"algorithm, {assumed.link_latency * 1e6:g} us each before the first byte; none "
                "overlaps with other work"
            )
        if layout.hosts > 1:
            yield (
                f"network: {assumed.network / GIGA:g} GB/s one way for each device, "
                f"{assumed.network_latency * 1e6:g} us; replicas exchange nothing in a step"
            )
        if layout.pp > 1:
            yield (
                "stages: layers one after the other, vocabulary spread over all stages, as many "
                "plans in flight as stages, all of one size; the floor is of the fullest stage"
            )
        if self.memory.config.has_experts:
            yield (
                "experts: every token picks its own at random, and only what is picked is read and "
                "multiplied; today's XLA does more on GPUs (grouped matmuls expand densely)"
            )


def row(name: str, amount: str, detail: str = "") -> str:
    """One line of a table."""
    return f"  {name:<11}{amount:>12}  {detail}".rstrip()


def milliseconds(seconds: float) -> str:
    """Seconds for people."""
    return f"{seconds * 1e3:.2f} ms"


def step_rows(title: str, step: StepTime) -> Iterator[str]:
    """The parts of one step's time."""
    yield ""
    yield title
    read = f"{gigabytes(step.weights_read)} of weights, {gigabytes(step.cache_read)} of cache"
    why = f"read {read}" if step.memory_bound else f"{step.operations / 1e12:,.1f} TFLOP"
    yield row("floor", milliseconds(step.floor), why)
    yield row("launches", milliseconds(step.launches))
    for one in step.exchanges:
        detail = f"{one.count} {one.what}, {gigabytes(one.bytes)} sent by a device, {one.link}"
        yield row("exchange", milliseconds(one.seconds), detail)
    yield row("expected", milliseconds(step.expected), f"{step.expected / step.floor:.2f} x floor")


def paper_plan(
    model: str,
    settings: Mapping[str, Any],
    device: Accelerator,
    sizes: tuple[int, int, int, int | None],
    work: tuple[int, int | None],
    network: float,
) -> Paper:
    """Calculate for a folder or a published shape.

    `work` is the requests of a replica and the tokens of each. Without a number of tokens: the
    usual one, or what the model takes if that is less.
    """
    batch, given = work
    context = USUAL_CONTEXT if given is None else given
    for name, value in (("batch", batch), ("context", context), ("network", network)):
        if value < 1:
            raise ConfigError(f"--{name} {value}: expected 1 or more.")
    args = EngineArgs.checked("jengine", model=model, **settings)
    config = with_dtype(config_of(model), args.dtype)
    schedule = schedule_config(args, config, DEVICE_DEFAULTS["gpu"])
    if given is None:
        context = min(context, schedule.max_model_len)
    if context > schedule.max_model_len:
        raise ConfigError(
            f"--context {context}: this model takes at most {schedule.max_model_len} tokens."
        )
    schedule = dataclasses.replace(schedule, max_num_seqs=max(batch, schedule.max_num_seqs))
    layout = checked_layout(*sizes)
    if layout.pp > len(config.layers):
        raise ConfigError(f"--pp {layout.pp}: this model has only {len(config.layers)} layers.")
    usable = int(device.memory * args.gpu_memory_utilization)
    memory = Memory(config, layout, schedule, args.block_size or BLOCK_SIZE, usable)
    assumed = Assumptions(network=network * GIGA / BITS_A_BYTE)
    prefill = schedule.largest_chunk
    return Paper(model, Timing(memory, device, assumed), Work(batch, context, prefill))


def config_of(model: str) -> ModelConfig:
    """The shape of a model: published, or of a folder whose weights are not read."""
    if model in PUBLISHED:
        return model_config(PUBLISHED[model])
    hint = "" if Path(model).expanduser().is_dir() else nearest_name(model, PUBLISHED)
    try:
        return read_model_config(resolve_model(model))
    except CheckpointError as error:
        raise CheckpointError(f"{error}{hint}") from error
