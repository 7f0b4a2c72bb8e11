"""Public names with which a user describes a model family for `jengine.register_model`.

`examples/07_add_a_model.py` defines a whole family with them.
"""

from jengine.config import LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_write import write_decoder, written_attention
from jengine.models.tensors.checkpoint import IgnoredTensor, Names, Piece

__all__ = [
    "Defaults",
    "Fields",
    "IgnoredTensor",
    "LayerConfig",
    "ModelConfig",
    "Names",
    "Piece",
    "read_attention",
    "read_decoder",
    "read_mlp",
    "read_num_layers",
    "write_decoder",
    "written_attention",
]
