"""The encoder's programs and output array: image embeddings, or cross-attention keys and values.

In: media spans. Out: rows of the array, which steps read. One program per input size, compiled at
the start or on first use, and counted in the ledger like steps. Must not know requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from jengine.media_spans import MediaSpan
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.step.leaves import Leaves
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part
from sharding.placement import put

IMAGES = "images"  # the logical axis of data-parallel encoding


class Packed(Protocol):
    """Packed arrays of one encoder run."""

    @property
    def given(self) -> Any:
        """Arguments of the model's encoder."""
        ...

    @property
    def rows(self) -> Any:
        """Row of the encoder's array for each output; out of range for padding."""
        ...


class Packer(Protocol):
    """Packs encoder inputs. Sizes are in image patches, audio positions or text tokens."""

    width: int  # of the array's rows

    def places_taken(self, span: MediaSpan) -> int: ...

    def pack(self, spans: Sequence[MediaSpan], size: int, capacity: int) -> Packed: ...


class Encoders:
    """One replica's encoder programs.

    A run is sharded over the replica's devices or, with `apart`, data-parallel: each device encodes
    its own spans.
    """

    def __init__(
        self, compiler: StepCompiler, packer: Packer, capacity: int, sizes: tuple[int, ...],
        ledger: CompileLedger, *, apart: bool = False,
    ) -> None:  # fmt: skip
        self._packer = packer
        self.sizes = sizes  # ascending
        self.capacity = capacity
        self._compiler = compiler
        self._ledger = ledger
        self._ways = compiler.placement.ways(IMAGES) if apart else 1
        self._programs: dict[int, tuple[Compiled, LedgerEntry]] = {}
        self.rows = jax.device_put(
            np.zeros((capacity, packer.width), np.float32), compiler.placement.everywhere
        )

    def encode(self, leaves: Leaves, spans: Sequence[MediaSpan]) -> None:
        """Queue encoder runs over the spans, each filled up to the largest program's size."""
        sizes = [self._packer.places_taken(span) for span in spans]
        for shares in shared(sizes, self._ways, self.sizes[-1]):
            each = [[spans[index] for index in share] for share in shares]
            self._run(leaves, each, [sum(sizes[index] for index in share) for share in shares])

    def _run(self, leaves: Leaves, each: list[list[MediaSpan]], used: list[int]) -> None:
        """Queue one run. `each` and `used`: every device's spans, and their patches or
        positions."""
        size = next(size for size in self.sizes if size >= max(used))
        if size not in self._programs:
            self._programs[size] = self._compiled(size)
        program, entry = self._programs[size]
        self.rows = program(leaves, self.rows, self._packed(each, size))
        entry.count(sum(used), prompt_tokens=sum(used))

    def _packed(self, each: Sequence[Sequence[MediaSpan]], size: int) -> Packed:
        """Pack spans into one run; with `apart`, arrays get a leading device axis."""
        parts = [self._packer.pack(spans, size, self.capacity) for spans in each]
        if self._ways == 1:
            return parts[0]
        whole = jax.tree.map(lambda *arrays: np.stack(arrays), *parts)
        return jax.tree.map(lambda x: put(x, self._where(x)), whole)

    def _where(self, array: np.ndarray) -> NamedSharding:
        """Sharding of a run's input array."""
        placement = self._compiler.placement
        if self._ways == 1:
            return placement.everywhere
        return placement.sharding((IMAGES, *[None] * (array.ndim - 1)), array.shape)

    def warm_up(self) -> None:
        """Compile every program."""
        for size in self.sizes:
            if size not in self._programs:
                self._programs[size] = self._compiled(size)

    def _compiled(self, size: int) -> tuple[Compiled, LedgerEntry]:
        began = time.perf_counter()
        everywhere = self._compiler.placement.everywhere
        inputs = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._where(x)),
            self._packed([[]] * self._ways, size),
        )
        rows = jax.ShapeDtypeStruct(self.rows.shape, self.rows.dtype, sharding=everywhere)
        body = encoding(self._compiler.rebuild)
        if self._ways > 1:
            body = encoding_apart(self._compiler)
        jitted = jax.jit(body, donate_argnums=1, out_shardings=everywhere)
        compiled = jitted.lower(self._compiler.model_leaves, rows, inputs).compile()
        memory = compiled.memory_analysis()
        entry = LedgerEntry(
            Bucket(0, size * self._ways, 0),
            Features(part=Part.ENCODER),
            seconds=time.perf_counter() - began,
            temp_bytes=memory.temp_size_in_bytes if memory else 0,
            code_bytes=memory.generated_code_size_in_bytes if memory else 0,
        )
        self._ledger.add(entry)
        return compiled, entry


def encoding(rebuild: Callable[[Leaves], Any]) -> Callable[..., Array]:
    """Traced function: run the encoder and write its outputs into rows of the array."""

    def encode(leaves: Leaves, kept: Array, packed: Packed) -> Array:
        made = rebuild(leaves).encode(packed.given).astype(jnp.float32)
        return kept.at[packed.rows].set(made, mode="drop")

    return encode


def encoding_apart(compiler: StepCompiler) -> Callable[..., Array]:
    """`encoding` with a leading device axis: each device encodes its own part."""
    placement = compiler.placement
    parts = [leaf.sharding.spec for leaf in compiler.model_leaves]
    images = placement.spec((IMAGES,), (placement.ways(IMAGES),))

    def own(leaves: Leaves, given: Any) -> Array:
        made = compiler.rebuild(leaves).encode(jax.tree.map(lambda x: x[0], given))
        return made.astype(jnp.float32)

    run = placement.on_each_device(own, (tuple(parts), images), images)

    def encode(leaves: Leaves, kept: Array, packed: Packed) -> Array:
        return kept.at[packed.rows.reshape(-1)].set(run(leaves, packed.given), mode="drop")

    return encode


def shared(sizes: Sequence[int], ways: int, most: int) -> list[list[list[int]]]:
    """Assign items to runs and devices, at most `most` per device and run: in order on one device,
    else largest first to the least loaded device. Returns indices as [run][device][item]."""
    runs, taken = list[list[list[int]]](), [most] * ways
    order = range(len(sizes))
    for index in order if ways == 1 else sorted(order, key=lambda index: -sizes[index]):
        least = taken.index(min(taken))
        if not runs or taken[least] + sizes[index] > most:
            runs.append([[] for _ in range(ways)])
            taken, least = [0] * ways, 0
        runs[-1][least].append(index)
        taken[least] += sizes[index]
    return runs
