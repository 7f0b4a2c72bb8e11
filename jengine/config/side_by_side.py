"""Attention and a recurrence beside each other in one layer, as data."""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config.attention import AttentionConfig, RopeConfig
from jengine.config.recurrent import Mamba2Config


@dataclass(frozen=True)
class SideBySideConfig:
    """Attention and a state space layer that read the same input, whose results are added up
    (Falcon-H1). The layer keeps keys and values of each token, and a state of its row."""

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
        """Elements of the matrices of a layer."""
        return self.attention.weights(hidden) + self.recurrent.weights(hidden)

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.attention.group

    @property
    def window(self) -> int | None:
        """How many tokens a query attends to."""
        return self.attention.window

    @property
    def rope(self) -> RopeConfig | None:
        """The rotation of its queries and keys."""
        return self.attention.rope

    @property
    def largest_activation(self) -> int:
        """Numbers of a token, sharded by head, in the largest array beside hidden states."""
        return max(self.attention.largest_activation, self.recurrent.largest_activation)
