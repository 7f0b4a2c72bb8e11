"""The MTP layer of a checkpoint, quantized like its model or not.

In: config.json, the model's config and the checkpoint's tensors. Out: the layer's declarations, and
its tensors by name within the layer. Must not know steps or sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jengine.config import ModelConfig
from jengine.models import registry
from jengine.models.draft_heads.heads import DraftHeads, Pieces
from jengine.models.draft_heads.mtp import COPIES, SHARED_HEAD, layer_prefix, read_mtp
from jengine.models.quantized import with_schemes
from jengine.models.tensors.checkpoint import Piece
from jengine.models.tensors.quantized_pieces import WEIGHT, quantized_pieces, stored_modules
from jengine.weight_formats import Quantization
from jengine.weights.quantized_tensors import decoded
from jengine.weights.safetensors_file import READABLE
from jengine.weights.safetensors_io import Tensors, is_copy
from jengine.weights.stored_parameter import TypedTensor

Stored = Mapping[str, TypedTensor]
HEAD_MODULE = SHARED_HEAD.removesuffix(WEIGHT)


def mtp_layer(
    folder: Path, hf: Mapping[str, Any], config: ModelConfig, tensors: Stored
) -> tuple[DraftHeads, Tensors]:
    """Declarations and tensors of a model's MTP layer. `tensors` is empty for random weights."""
    names = registry.tensor_names(config)
    tensors = registry.full_names(config, tensors) if tensors else tensors
    prefix = layer_prefix(config, names)
    own = {
        name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)
    }
    whole = names.embed_weight, f"{names.head}{WEIGHT}"
    for copy, original in zip(COPIES, whole, strict=True):
        comparable = is_plain(own, copy.removesuffix(WEIGHT)) and original in tensors
        if comparable and is_copy(own[copy], tensors[original]):
            del own[copy]
    has_head = any(name.startswith(f"{HEAD_MODULE}.") for name in own)
    heads = read_mtp(hf, config, names, {*own, SHARED_HEAD} if has_head else own)
    if config.quantization is None or config.quantization.on_load:
        return heads, own
    return as_stored(folder, heads, own, prefix, config)


def as_stored(
    folder: Path, heads: DraftHeads, own: Stored, prefix: str, config: ModelConfig
) -> tuple[DraftHeads, Tensors]:
    """Apply the model's quantization to the layer, except to matrices stored unquantized:
    DeepSeek's `eh_proj` always, and the whole layer with quantization tools that leave it out
    without a note in config.json."""
    quantization = config.quantization
    assert quantization is not None, "a plain layer is read as it is"
    modules = {piece.name.removesuffix(WEIGHT) for piece in all_pieces(heads.pieces)}
    plain = tuple(prefix + module for module in sorted(modules) if is_plain(own, module))
    quantization = replace(quantization, ignored=(*quantization.ignored, *plain))
    pieces = renamed(heads.pieces, prefix)
    with_schemes(heads.model, quantization, pieces, config.dtype)
    tensors = decoded_layer(folder, quantization, pieces, own, prefix) if own else {}
    stored = renamed(quantized_pieces(quantization, pieces), prefix, to_full=False)
    return heads._replace(pieces=stored), tensors


def decoded_layer(
    folder: Path, quantization: Quantization, pieces: Pieces, own: Stored, prefix: str
) -> Tensors:
    """The layer's tensors, those of quantized modules decoded when they are read."""
    full = {prefix + name: one for name, one in own.items()}
    found = decoded(folder, full, stored_modules(quantization, pieces))
    return {name.removeprefix(prefix): one for name, one in found.items()}


def is_plain(own: Stored, module: str) -> bool:
    """Whether the file holds the module's weight unquantized."""
    tensor = own.get(f"{module}{WEIGHT}")
    return tensor is not None and tensor.dtype in READABLE


def all_pieces(pieces: Pieces) -> list[Piece]:
    """Flatten to the pieces of all parameters."""
    return [piece for found in pieces.values() for piece in found]


def renamed(pieces: Pieces, prefix: str, *, to_full: bool = True) -> Pieces:
    """Add `prefix` to the names of the pieces' tensors, or with `to_full` False remove it."""

    def name(given: str) -> str:
        return prefix + given if to_full else given.removeprefix(prefix)

    return {
        path: tuple(replace(piece, name=name(piece.name)) for piece in found)
        for path, found in pieces.items()
    }
