"""Shapes of attention that kernels are compiled for without a GPU, and checked for on one.

`gpu_proof` compiles all of `attention_shapes`, `gpu` checks the numbers of all. No jax here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

HEAD_DIMS = (64, 80, 96, 128, 256)
# Queries of a KV head, which kernels pad differently.
GROUPS = (1, 4, 7, 16)
ALL_OPTIONS: dict[str, Any] = {"window": 1000, "soft_cap": 50.0, "sinks": True}


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Heads and options of a layer's attention, and what its cache holds."""

    dtype: str = "bfloat16"
    head_dim: int = 128
    group: int = 4
    kv_heads: int = 8
    block_size: int = 16
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    codes: str = ""  # in place of plain numbers

    def __str__(self) -> str:
        more = " all options" * self.sinks + f" cache of {self.codes}" * bool(self.codes)
        return f"{self.dtype} dim {self.head_dim} group {self.group} block {self.block_size}{more}"


# Its decode attention is also compiled for as many rows as an engine has, with long tables.
USUAL = AttentionShape()


def attention_shapes() -> Iterator[AttentionShape]:
    """Every dtype, cache, option, head size, and groups with different padding; the most telling
    first, since a check on a device may run out of time."""
    yield USUAL
    yield AttentionShape(dtype="float16")
    for codes in ("int8", "fp8"):
        for head_dim, group in ((128, 4), (64, 8), (128, 1), (256, 16)):
            yield AttentionShape(head_dim=head_dim, group=group, codes=codes)
    for head_dim in (128, 64, 256):
        yield AttentionShape(dtype="float32", head_dim=head_dim, group=8)
        yield AttentionShape(head_dim=head_dim, group=8, **ALL_OPTIONS)
        yield AttentionShape(dtype="float32", head_dim=head_dim, group=1)
    yield AttentionShape(block_size=128)
    yield AttentionShape(head_dim=64, group=8)
    shapes = (AttentionShape(head_dim=size, group=n) for n in GROUPS for size in HEAD_DIMS)
    yield from (shape for shape in shapes if shape != USUAL)


def fa4_shapes(block_size: int) -> Iterator[AttentionShape]:
    """What FlashAttention-4's kernels can do: odd groups, head sizes, windows, a dtype, and sinks
    with a window."""
    usual = AttentionShape(block_size=block_size)
    yield usual
    yield from (replace(usual, group=group) for group in (1, 7, 8))
    yield from (replace(usual, head_dim=size) for size in (64, 96))
    yield replace(usual, window=1000)
    yield replace(usual, dtype="float16")
    yield replace(usual, head_dim=64, group=8, window=128, sinks=True)
