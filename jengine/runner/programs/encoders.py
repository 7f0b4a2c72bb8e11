"""The programs of an encoder, and the array that keeps what it makes: embeddings of images, or keys
and values of audio.

In: spans with their content. Out: rows of the array, which steps read. Each size has a program,
compiled at the start or when it is first needed, and counted as steps are. Must not know requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.media_spans import MediaSpan
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.runner.programs.ledger import CompileLedger, LedgerEntry
from jengine.runner.step.leaves import Leaves
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features


class Packed(Protocol):
    """Arrays of one run."""

    @property
    def given(self) -> Any:
        """What the model's encoder takes."""
        ...

    @property
    def rows(self) -> Any:
        """The row of the array for each thing that it makes; out of range for padding."""
        ...


class Packer(Protocol):
    """Packs what an encoder reads; sizes are patches of images, or positions of audio."""

    width: int  # numbers of a row of the array

    def places_taken(self, span: MediaSpan) -> int: ...

    def pack(self, spans: Sequence[MediaSpan], size: int, capacity: int) -> Packed: ...


class Encoders:
    """The encoder's programs of one replica, on all of its devices alike."""

    def __init__(
        self, compiler: StepCompiler, packer: Packer, capacity: int, sizes: tuple[int, ...],
        ledger: CompileLedger,
    ) -> None:  # fmt: skip
        self._packer = packer
        self.sizes = sizes  # ascending
        self.capacity = capacity
        self._compiler = compiler
        self._ledger = ledger
        self._programs: dict[int, tuple[Compiled, LedgerEntry]] = {}
        self.rows = jax.device_put(
            np.zeros((capacity, packer.width), np.float32), compiler.placement.everywhere
        )

    def encode(self, leaves: Leaves, spans: Sequence[MediaSpan]) -> None:
        """Queue runs of the encoder, each with as many spans as the largest program takes."""
        batch, taken = list[MediaSpan](), 0
        for span in spans:
            size = self._packer.places_taken(span)
            if taken + size > self.sizes[-1]:
                self._run(leaves, batch, taken)
                batch, taken = [], 0
            batch.append(span)
            taken += size
        self._run(leaves, batch, taken)

    def _run(self, leaves: Leaves, batch: list[MediaSpan], used: int) -> None:
        """Queue one run, of which `used` places are no padding."""
        if not batch:
            return
        size = next(size for size in self.sizes if size >= used)
        if size not in self._programs:
            self._programs[size] = self._compiled(size)
        program, entry = self._programs[size]
        self.rows = program(leaves, self.rows, self._packer.pack(batch, size, self.capacity))
        entry.count(used, prompt_tokens=used)

    def warm_up(self) -> None:
        """Compile every program."""
        for size in self.sizes:
            if size not in self._programs:
                self._programs[size] = self._compiled(size)

    def _compiled(self, size: int) -> tuple[Compiled, LedgerEntry]:
        began = time.perf_counter()
        everywhere = self._compiler.placement.everywhere
        empty = self._packer.pack([], size, self.capacity)
        inputs, rows = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
            (empty, self.rows),
        )
        body = encoding(self._compiler.rebuild)
        jitted = jax.jit(body, donate_argnums=1, out_shardings=everywhere)
        compiled = jitted.lower(self._compiler.leaves, rows, inputs).compile()
        memory = compiled.memory_analysis()
        entry = LedgerEntry(
            Bucket(0, size, 0),
            Features(encoder=True),
            seconds=time.perf_counter() - began,
            temp_bytes=memory.temp_size_in_bytes if memory else 0,
            code_bytes=memory.generated_code_size_in_bytes if memory else 0,
        )
        self._ledger.add(entry)
        return compiled, entry


def encoding(rebuild: Callable[[Leaves], Any]) -> Callable[..., Array]:
    """The traced function: the array with what the encoder makes of this input in its rows."""

    def encode(leaves: Leaves, kept: Array, packed: Packed) -> Array:
        made = rebuild(leaves).encode(packed.given).astype(jnp.float32)
        return kept.at[packed.rows].set(made, mode="drop")

    return encode
