"""Reads the settings that Mamba's selective scans share in config.json.

In: its fields. Out: parts of a MambaConfig. Must not know families.
"""

from __future__ import annotations

from jengine.config import MambaConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_activation
from jengine.models.reading.hf_write import written_part


def expect_silu(fields: Fields) -> None:
    """Refuse activations other than SiLU, for the convolution and the gate."""
    if read_activation(fields, "hidden_act", "silu") != "silu":
        fields.refuse("hidden_act", "silu, which Mamba layers have after their convolution")


def read_rank(fields: Fields, key: str, hidden: int) -> int:
    """Rank of the projection of time steps (dt); "auto": hidden size / 16, rounded up."""
    if fields.values.get(key, "auto") == "auto":
        return -(-hidden // 16)
    return fields.integer(key)


def written_mamba(config: ModelConfig) -> MambaConfig:
    """The model's selective scan. Raises CheckpointError if it has none."""
    return written_part(config, MambaConfig, "Mamba layers")
