"""Recurrent layer configuration: mixers with a fixed-size state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from jengine.config.cache import CacheSpec, StateSpec

# Whether a gate comes before the norm, after it, or there is no norm.
Gate = Literal["before_norm", "after_norm", "alone"]


@dataclass(frozen=True)
class ShortConvConfig:
    """A gated depthwise convolution over the last few tokens (LFM2)."""

    channels: int
    width: int  # tokens that it sees, the newest included
    bias: bool = False

    # What is asked of every mixer: a token reads the state alone, and nothing is rotated.
    window = 1
    group = 1
    rope = None

    @property
    def cache(self) -> CacheSpec:
        """Cache spec of this layer."""
        return recurrent_spec(StateSpec((self.width - 1, self.channels), (None, "mlp")))

    @property
    def operations(self) -> int:
        """FLOPs per token besides matmuls."""
        return (2 * self.width + 2) * self.channels

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        return 4 * hidden * self.channels

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by channel."""
        return 3 * self.channels


@dataclass(frozen=True)
class MambaConfig:
    """A selective scan (Mamba): a channel's state is a vector, whose numbers decay on their own."""

    channels: int
    state_size: int
    rank: int  # of the matrix that makes time steps
    width: int  # tokens that the convolution before it sees, the newest included
    conv_bias: bool = True
    bias: bool = False  # of the matmuls
    # RMS norms of what makes time steps, and of both kinds of keys.
    norms: Literal["weighted", "bare"] | None = None
    norm_eps: float = 1e-6

    window = 1
    group = 1
    rope = None

    @property
    def cache(self) -> CacheSpec:
        """Cache spec of this layer."""
        return recurrent_spec(
            StateSpec((self.width - 1, self.channels), (None, "mlp")),
            StateSpec((self.channels, self.state_size), ("mlp", None)),
        )

    @property
    def operations(self) -> int:
        """FLOPs per token besides matmuls."""
        return 6 * self.channels * self.state_size

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        selected = self.rank + 2 * self.state_size
        return self.channels * (3 * hidden + selected + self.rank)

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by channel."""
        return 2 * self.channels


@dataclass(frozen=True)
class Mamba2Config:
    """A state space layer (Mamba-2): a head's state is a matrix that decays as a whole."""

    num_heads: int
    head_dim: int
    groups: int  # heads of a group share their keys; the norm after the gate is that of a group
    state_size: int  # length of a key
    width: int  # tokens that the convolution before it sees, the newest included
    conv_bias: bool = True
    bias: bool = False  # of the matmuls
    time_limits: tuple[float, float] = (0.0, math.inf)
    gate: Gate = "before_norm"
    norm_eps: float | None = None  # of the norm beside it; None: the model's
    # What gates, values, the two kinds of keys, and time steps are multiplied by.
    scales: tuple[float, float, float, float, float] = (1.0,) * 5

    window = 1
    group = 1
    rope = None

    @property
    def cache(self) -> CacheSpec:
        """Cache spec of this layer."""
        heads, before = (self.num_heads, self.head_dim), self.width - 1
        return recurrent_spec(
            StateSpec((before, *heads), (None, "heads", None)),
            StateSpec((before, 2, self.groups, self.state_size), (None, None, None, None)),
            StateSpec((*heads, self.state_size), ("heads", None, None)),
        )

    @property
    def operations(self) -> int:
        """FLOPs per token besides matmuls."""
        return 6 * self.num_heads * self.head_dim * self.state_size

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        inner = self.num_heads * self.head_dim
        return hidden * (3 * inner + 2 * self.groups * self.state_size + self.num_heads)

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by head."""
        return 2 * self.num_heads * self.head_dim


@dataclass(frozen=True)
class DeltaConfig:
    """A gated delta net (Qwen3-Next): a head's state is a matrix that maps keys to values."""

    key_heads: int
    share: int  # heads of values for each head of keys, which share its query and key
    key_dim: int
    value_dim: int
    width: int  # tokens that the convolution before it sees, the newest included
    # Whether checkpoints hold queries with keys and values, gates, decays and shares of the error
    # in tensors of their own, each with its heads one after the other.
    split: bool = False

    window = 1
    group = 1
    rope = None

    @property
    def convolved(self) -> int:
        """Convolution channels per key head."""
        return 2 * self.key_dim + self.share * self.value_dim

    @property
    def cache(self) -> CacheSpec:
        """Cache spec of this layer."""
        heads, matrix = (self.key_heads, self.share), (self.key_dim, self.value_dim)
        before = (self.width - 1, self.key_heads, self.convolved)
        return recurrent_spec(
            StateSpec(before, (None, "heads", None)),
            StateSpec((*heads, *matrix), ("heads", None, None, None)),
        )

    @property
    def operations(self) -> int:
        """FLOPs per token besides matmuls."""
        return 7 * self.key_heads * self.share * self.key_dim * self.value_dim

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        values = self.share * self.value_dim
        return hidden * self.key_heads * (self.convolved + 2 * values + 2 * self.share)

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by head."""
        return self.key_heads * (self.convolved + self.share * self.value_dim)


# Every recurrent mixer.
RecurrentConfig = ShortConvConfig | MambaConfig | Mamba2Config | DeltaConfig
RECURRENT = (ShortConvConfig, MambaConfig, Mamba2Config, DeltaConfig)


def recurrent_spec(*states: StateSpec) -> CacheSpec:
    """Cache spec of a recurrent layer with these state arrays."""
    return CacheSpec("recurrent", 0, 0, window=2, states=states)
