"""Memory use of an engine on one device, as text and as a notebook picture.

In: a built engine. Out: MemoryPicture. Reads shapes only, so it never waits for the device.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from jengine.assembly.engine import Engine
from jengine.config import CacheConfig, CacheSpec
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.report_types import CACHE
from jengine.runner.reports import on_one_device
from jengine.runner.step.attention_backend import cache_dtype_name
from jengine.runner.step.group_arrays import each_array
from jengine.weights.prepared import parameter_count

# One hue per part, readable on light and on dark pages.
COLOURS = ("#4c78a8", "#f58518", "#eeca3b", "#b279a2", "#54a24b", "#9d755d")
ROOM = "#8884"
# Minimum width of a drawn part, in percent.
NARROWEST = 0.4


@dataclass(frozen=True)
class MemoryPart:
    name: str
    bytes: int
    detail: str


@dataclass(frozen=True)
class MemoryPicture:
    """One device's memory by part, and its free bytes if the device reports them."""

    parts: tuple[MemoryPart, ...]
    devices: int
    free: int | None = None

    @property
    def total(self) -> int:
        return sum(part.bytes for part in self.parts)

    def __str__(self) -> str:
        rows = [(part.name, in_units(part.bytes), part.detail) for part in self._shown()]
        lines = [f"{name:<12} {amount:>10}  {detail}" for name, amount, detail in rows]
        return "\n".join([*lines, f"{'together':<12} {in_units(self.total):>10}  {self._where()}"])

    def _repr_html_(self) -> str:
        shown = list(self._shown())
        whole = sum(part.bytes for part in shown) or 1
        colours = [
            ROOM if part.name == "free" else COLOURS[i % len(COLOURS)]
            for i, part in enumerate(shown)
        ]
        bar = "".join(
            f'<div title="{_escaped(part.name)}: {in_units(part.bytes)}" style="background: '
            f'{colour}; width: {max(100 * part.bytes / whole, NARROWEST):.2f}%"></div>'
            for part, colour in zip(shown, colours, strict=True)
        )
        rows = "".join(
            f'<tr><td style="color: {colour}">&#9632;</td><td>{_escaped(part.name)}</td>'
            f'<td style="text-align: right">{in_units(part.bytes)}</td>'
            f'<td style="text-align: left">{_escaped(part.detail)}</td></tr>'
            for part, colour in zip(shown, colours, strict=True)
        )
        return (
            f'<div style="display: flex; height: 1.6em; max-width: 48em">{bar}</div>'
            f"<table>{rows}<tr><td></td><td>together</td>"
            f'<td style="text-align: right">{in_units(self.total)}</td>'
            f'<td style="text-align: left">{_escaped(self._where())}</td></tr></table>'
        )

    def _shown(self) -> Iterator[MemoryPart]:
        yield from self.parts
        if self.free is not None:
            yield MemoryPart("free", self.free, "not in use")

    def _where(self) -> str:
        return "on one device" if self.devices == 1 else f"on each of {self.devices} devices"


def memory_picture(engine: Engine) -> MemoryPicture:
    """The engine's current memory."""
    device = engine.placement.mesh.local_devices[0]
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    return MemoryPicture(
        parts=tuple(_parts(engine)),
        devices=engine.placement.mesh.size,
        free=None if limit is None else max(limit - stats.get("bytes_in_use", 0), 0),
    )


def _parts(engine: Engine) -> Iterator[MemoryPart]:
    loaded, cache = engine.loaded, engine.cache
    count = parameter_count(engine.declared)
    kinds = ", ".join(sorted({str(leaf.dtype) for leaf in loaded.leaves}))
    yield MemoryPart("weights", on_one_device(loaded.leaves), f"{count:,} parameters, {kinds}")
    if CACHE not in loaded.asleep.tags:
        yield from _state_parts(loaded, cache)
    yield from _program_parts(engine)


def _state_parts(loaded: LoadedModel, cache: CacheConfig) -> Iterator[MemoryPart]:
    groups = zip(cache.groups, cache.num_blocks, loaded.state.caches, strict=True)
    for group, blocks, found in groups:
        arrays = each_array(found)
        detail = (
            f"{len(group.layers)} layers ({group_kind(group.spec)}), {blocks - 1:,} "
            f"{units(group.spec, cache.block_size)}, {cache_dtype_name(arrays[0].dtype)}"
        )
        yield MemoryPart("cache", on_one_device(arrays), detail)
    rest = loaded.state._replace(caches=(), held=None)
    rows, adjusted = loaded.shapes.max_rows, len(loaded.state.rows.marks)
    detail = f"last tokens of {rows} rows, penalties and masks of {adjusted}"
    yield MemoryPart("row state", on_one_device(jax.tree.leaves(rest)), detail)
    if loaded.state.held is not None:
        stages, tokens, _ = loaded.state.held.x.shape
        detail = f"{tokens:,} tokens on their way to the next of {stages} stages"
        yield MemoryPart("hand-over", on_one_device(jax.tree.leaves(loaded.state.held)), detail)


def group_kind(spec: CacheSpec) -> str:
    """Label of a cache group: full attention, "window of 4096", or the kind of state."""
    if spec.is_state or spec.window is None:
        return spec.kind
    return f"{'chunks' if spec.in_chunks else 'window'} of {spec.window}"


def units(spec: CacheSpec, block_size: int) -> str:
    return "states" if spec.is_state else f"blocks of {block_size} tokens"


def _program_parts(engine: Engine) -> Iterator[MemoryPart]:
    entries = list(engine.loaded.programs.ledger.entries.values())
    if not entries:
        return
    largest = max(entries, key=lambda entry: entry.temp_bytes)
    detail = f"while a step runs; the most is taken by {largest.bucket} {largest.features}"
    yield MemoryPart("temporaries", largest.temp_bytes, detail)
    code = sum(entry.code_bytes for entry in entries)
    if code:
        yield MemoryPart("programs", code, f"code of {len(entries)} compiled steps")


def in_units(count: int) -> str:
    """Bytes as text with a unit, such as 1.5 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
