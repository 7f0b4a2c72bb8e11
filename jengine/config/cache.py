"""KV cache configuration: what layers keep per token, block size and counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

CacheKind = Literal["full", "sliding", "chunked", "latent", "recurrent", "whole"]
# What `kv_cache_dtype=` asks for: codes of one byte with a scale per head of a token, or None.
CACHE_CODES: dict[str, str | None] = {
    "auto": None, "int8": "int8", "int8_per_token_head": "int8",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_per_token_head": "fp8",
}  # fmt: skip


# Names of the pieces of a block where each process has all of it.
WHOLE_BLOCKS = ("",)


@dataclass(frozen=True)
class StateSpec:
    """One float32 array of a recurrent layer's state: shape per row, and logical axes."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


@dataclass(frozen=True)
class CacheSpec:
    """What a layer keeps per token or, if recurrent, per row. Layers with equal specs share a cache
    group."""

    kind: CacheKind
    # A latent cache has one vector per token, which all heads share and every device holds whole.
    # A recurrent one has no KV heads.
    kv_heads: int
    head_dim: int
    # A whole one keeps nothing: tokens attend to those of the same step.
    # Sliding: how many tokens a token reads, itself included. Chunked: tokens of a chunk, of which
    # a token reads those before it.
    # Recurrent: 2, since a token reads the state after the token before it.
    window: int | None = None
    # Recurrent: the arrays of a state, and every how many tokens a copy of it stays for prompts
    # with the same beginning. None: never.
    states: tuple[StateSpec, ...] = ()
    snapshot_every: int | None = None

    def first_read(self, positions: Any) -> Any:
        """First position read by a token at each of these positions (numpy or JAX)."""
        if self.window is None:
            return positions * 0
        if self.kind == "chunked":
            first = positions - positions % self.window
        else:
            first = positions - self.window + 1
        return first * (first > 0)

    @property
    def vectors(self) -> int:
        """Vectors per head and token: key and value, or one for both."""
        return 1 if self.shares_heads else 2

    @property
    def state_size(self) -> int:
        """Elements of a recurrent layer's state."""
        return sum(math.prod(state.shape) for state in self.states)

    @property
    def is_state(self) -> bool:
        """Whether it is a recurrent state rather than per-token entries."""
        return self.kind == "recurrent"

    @property
    def in_chunks(self) -> bool:
        """Whether attention is chunked: a token reads only its own chunk."""
        return self.kind == "chunked"

    @property
    def keeps_nothing(self) -> bool:
        """Whether nothing is kept: tokens attend only within their step (encoders)."""
        return self.kind == "whole"

    @property
    def shares_heads(self) -> bool:
        """Whether one entry per token serves all heads (latent attention)."""
        return self.kind == "latent"

    @property
    def in_parts(self) -> bool:
        """Whether its group has one array per state part (or none) instead of a single cache
        array."""
        return self.is_state or self.keeps_nothing

    @property
    def keeps_all(self) -> bool:
        """Whether all tokens of a running request are kept."""
        return self.kind in ("full", "latent") and self.window is None


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table: equal specs, one device array with a leading layer axis."""

    spec: CacheSpec
    layers: tuple[int, ...]


def cache_groups(layer_specs: tuple[tuple[CacheSpec, ...], ...]) -> tuple[CacheGroup, ...]:
    """Group layers by spec, in order of first appearance. A layer may have several specs, and then
    is in several groups."""
    by_spec: dict[CacheSpec, list[int]] = {}
    for layer, specs in enumerate(layer_specs):
        for spec in specs:
            by_spec.setdefault(spec, []).append(layer)
    return tuple(CacheGroup(spec, tuple(layers)) for spec, layers in by_spec.items())


@dataclass(frozen=True)
class CacheConfig:
    """The paged cache: block size, and blocks per group."""

    groups: tuple[CacheGroup, ...]
    block_size: int
    num_blocks: tuple[int, ...]
    enable_prefix_caching: bool = True
    # Share of the blocks whose stay in the cache is measured.
    measured_blocks: float = 0.0
    # What keys and values are stored as: content under another name is other content.
    stored_as: str = ""
    # Positions after those that a plan runs for which a request holds blocks as well: the step's
    # own drafts at tokens are run there.
    lookahead: int = 0
    # Whether steps say more of each token, which is kept for those that are found in the cache.
    keeps_records: bool = False
    # Whether requests may begin with copies of others' partly filled blocks.
    keeps_partial_blocks: bool = False
    # Of each group, blocks that have room in the host's memory. Empty: none leave the device.
    host_slots: tuple[int, ...] = ()
    # Bytes of a block of each group on all devices; empty: not known where none leave them.
    block_bytes: tuple[int, ...] = ()
    # Blocks that a step waits for at most, when they come from there.
    most_loads: int = 0
    # What names the piece of a block that each process has, in their order; "": all of it.
    pieces: tuple[str, ...] = WHOLE_BLOCKS
    # Seconds that the copy of a block of each group from there takes, as this process has measured;
    # processes need not agree on it. Empty: not measured.
    load_seconds: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @property
    def fewest_blocks(self) -> int:
        """Block count of the smallest group, recurrent states excluded unless there is nothing
        else."""
        groups = zip(self.groups, self.num_blocks, strict=True)
        growing = [count for group, count in groups if not group.spec.is_state]
        return min(growing or self.num_blocks)
