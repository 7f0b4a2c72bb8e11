"""Attention and a recurrence side by side in one layer."""

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
