"""Checkpoint tensors of the shared vision tower, by parameter path.

In: a VisionConfig and a family's TowerNames. Must not know files or devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config import ModelConfig, VisionConfig
from jengine.models.tensors.checkpoint import EVERY, Names, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.models.tensors.matrix_pieces import Pieces


@dataclass(frozen=True)
class TowerNames:
    """A family's tower tensor names, without '.weight' and '.bias' (and, within blocks, the block's
    prefix)."""

    prefix: str = "visual."
    patch: str = "patch_embed.proj"
    # The patch convolution has a temporal axis.
    patch_has_frames: bool = True
    class_vector: str = ""  # complete name
    table: str = ""  # complete name
    table_has_batch: bool = False  # position table is stored as [1, positions, hidden]
    norm_before: str = ""
    norm_after: str = ""
    blocks: str = "blocks"
    before_attention: str = "norm1"
    before_mlp: str = "norm2"
    qkv: tuple[str, ...] = ("attn.qkv",)  # fused, or q, k and v
    out: str = "attn.proj"
    up: tuple[str, ...] = ("mlp.fc1",)
    down: str = "mlp.fc2"
    scales: tuple[str, ...] = ()  # layer scale; complete names
    # Complete names, since projectors are often outside the tower.
    merger_norm: str = "visual.merger.ln_q"
    merger_up: str = "visual.merger.mlp.0"
    merger_down: str = "visual.merger.mlp.2"
    merger_out: str = ""  # of a single matmul, stored as [inputs, outputs]
    # Deepstack mergers, with {} for their index.
    deep_norm: str = ""
    deep_up: str = ""
    deep_down: str = ""


def decoder_and_tower(config: ModelConfig, names: Names, tower: TowerNames) -> Pieces:
    """Pieces of a decoder whose prompts have images."""
    assert config.vision is not None, "read with one"
    return {**decoder_pieces(config, names), **vision_pieces(config.vision, tower)}


def vision_pieces(vision: VisionConfig, names: TowerNames) -> Pieces:
    """Pieces of the tower, at `vision.` in the model."""
    hidden, own = vision.hidden_size, names.prefix
    frames = (vision.frames,) if names.patch_has_frames else ()
    shape = (hidden, vision.channels, *frames, vision.patch_size, vision.patch_size)
    pieces: Pieces = {"patch_weight": (Piece(f"{own}{names.patch}.weight", shape),)}
    if vision.patch_bias:
        pieces["patch_bias"] = (Piece(f"{own}{names.patch}.bias", (hidden,)),)
    batch = (1,) if names.table_has_batch else ()
    if vision.class_vector:
        shape = (*batch, *batch, hidden)
        pieces["class_vector"] = (Piece(own + names.class_vector, shape),)
    if vision.table_side:
        rows = vision.table_side**2 + vision.class_vector
        pieces["table"] = (Piece(own + names.table, (*batch, rows, hidden)),)
    if vision.norm_before:
        pieces |= _norm("norm_before", own + names.norm_before, hidden, vision.norm)
    if vision.norm_after:
        pieces |= _norm("norm_after", own + names.norm_after, hidden, vision.norm)
    for layer in range(vision.num_layers):
        theirs = f"{own}{names.blocks}.{layer}."
        found = _block(vision, names, theirs)
        pieces |= {f"blocks.{layer}.{path}": each for path, each in found.items()}
    if vision.merger.kind == "average":
        shape = (hidden, vision.merger.width)
        pieces |= _norm("merger.norm", names.merger_norm, hidden, vision.merger.norm)
        pieces["merger.out.weight"] = (Piece(names.merger_out, shape),)
    else:
        pieces |= _merger("merger", vision, names.merger_norm, names.merger_up, names.merger_down)
    for number, _ in enumerate(vision.deep_layers):
        theirs3 = (one.format(number) for one in (names.deep_norm, names.deep_up, names.deep_down))
        pieces |= _merger(f"deep_mergers.{number}", vision, *theirs3, kind="norm_merged")
    return {f"vision.{path}": each for path, each in pieces.items()}


def _norm(path: str, name: str, size: int, kind: str) -> Pieces:
    pieces: Pieces = {f"{path}.weight": (Piece(f"{name}.weight", (size,)),)}
    if kind == "layer":
        pieces[f"{path}.bias"] = (Piece(f"{name}.bias", (size,)),)
    return pieces


def _matrix(path: str, name: str, inputs: int, outputs: int, *, bias: bool) -> Pieces:
    pieces: Pieces = {f"{path}.weight": (Piece(f"{name}.weight", (outputs, inputs), (), True),)}
    if bias:
        pieces[f"{path}.bias"] = (Piece(f"{name}.bias", (outputs,)),)
    return pieces


def _block(vision: VisionConfig, names: TowerNames, theirs: str) -> Pieces:
    hidden, inner = vision.hidden_size, vision.intermediate_size
    pieces = _norm("before_attention", theirs + names.before_attention, hidden, vision.norm)
    pieces |= _norm("before_mlp", theirs + names.before_mlp, hidden, vision.norm)
    pieces |= _together(
        "qkv", [theirs + name for name in names.qkv], 3, hidden, hidden, bias=vision.qkv_bias
    )
    if vision.layer_scales:
        for path, name in zip(("attention_scale", "mlp_scale"), names.scales, strict=True):
            pieces[path] = (Piece(theirs + name, (hidden,)),)
    pieces |= _matrix("out", theirs + names.out, hidden, hidden, bias=True)
    bias = vision.mlp_bias
    if vision.gated:
        both = [theirs + name for name in names.up]
        pieces |= _together("up", both, 2, hidden, inner, bias=bias)
    else:
        pieces |= _matrix("up", theirs + names.up[0], hidden, inner, bias=bias)
    return pieces | _matrix("down", theirs + names.down, inner, hidden, bias=bias)


def _together(
    path: str, theirs: list[str], count: int, inputs: int, outputs: int, *, bias: bool
) -> Pieces:
    """A parameter [inputs, count, ...] from one fused tensor or `count` separate ones."""
    if len(theirs) == 1:
        return _matrix(path, theirs[0], inputs, count * outputs, bias=bias)
    weights = [
        Piece(f"{name}.weight", (outputs, inputs), (EVERY, number), True)
        for number, name in enumerate(theirs)
    ]
    pieces: Pieces = {f"{path}.weight": tuple(weights)}
    if bias:
        pieces[f"{path}.bias"] = tuple(
            Piece(f"{name}.bias", (outputs,), (number,)) for number, name in enumerate(theirs)
        )
    return pieces


def _merger(
    path: str, vision: VisionConfig, norm: str, up: str, down: str, kind: str | None = None
) -> Pieces:
    config, hidden = vision.merger, vision.hidden_size
    kind, merged = kind or config.kind, hidden * config.patches
    pieces: Pieces = {}
    if kind != "none":
        size = merged if kind == "norm_merged" else hidden
        pieces |= _norm(f"{path}.norm", norm, size, config.norm)
    pieces |= _matrix(f"{path}.up", up, merged, config.inner, bias=config.bias)
    return pieces | _matrix(f"{path}.down", down, config.inner, config.width, bias=config.bias)
