"""Attention and a recurrence in one layer: side by side, or one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config.attention import AttentionConfig, RopeConfig
from jengine.config.recurrent import Mamba2Config


@dataclass(frozen=True)
class SideBySideConfig:
    """Attention and a state space layer on the same input, whose outputs are added (Falcon-H1). The
    layer keeps KV per token and a state per row."""

    attention: AttentionConfig
    recurrent: Mamba2Config
    # What the input of each is multiplied by after the norm, the keys of attention, and what each
    # makes (maximal update parametrization).
    attention_input: float = 1.0
    attention_keys: float = 1.0
    attention_output: float = 1.0
    recurrent_input: float = 1.0
    recurrent_output: float = 1.0

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        return self.attention.weights(hidden) + self.recurrent.weights(hidden)

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.attention.group

    @property
    def window(self) -> int | None:
        return self.attention.window

    @property
    def rope(self) -> RopeConfig | None:
        return self.attention.rope

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by head."""
        return max(self.attention.largest_activation, self.recurrent.largest_activation)


@dataclass(frozen=True)
class SharedBlockConfig:
    """Attention and a gated MLP whose weights several layers share, then a state space layer (Zamba
    2). What the block makes is added to the state space layer's input alone."""

    block: int  # which of the model's blocks
    attention: AttentionConfig
    mlp_size: int
    activation: str
    mlp_bias: bool
    recurrent: Mamba2Config
    mlp_rank: int  # of what this layer adds to the first matmul of the MLP
    qkv_rank: int | None = None  # and to that of attention; None: nothing

    window = None
    rope = None

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        own = 3 * self.mlp_size + self.mlp_rank + hidden
        added = self.mlp_rank * 2 * self.mlp_size
        attention = 2 * self.attention.weights(hidden)  # of inputs twice as wide
        return attention + hidden * own + added + self.recurrent.weights(hidden)

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.attention.group

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by head."""
        return max(2 * self.mlp_size, self.recurrent.largest_activation)
