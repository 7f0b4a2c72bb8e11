"""Checkpoint tensors of recurrent layers, by parameter path.

In: a layer's config and tensor prefix. A tensor may fill several parameters: one stored matmul
becomes several that are sharded differently.
"""

from __future__ import annotations

import itertools

from jengine.config import (
    DeltaConfig,
    Mamba2Config,
    MambaConfig,
    RecurrentConfig,
    ShortConvConfig,
)
from jengine.models.tensors.checkpoint import EVERY, Index, Piece
from jengine.models.tensors.matrix_pieces import Pieces


def recurrent_pieces(hidden: int, config: RecurrentConfig, theirs: str) -> Pieces:
    """Pieces of one layer's mixer."""
    if isinstance(config, ShortConvConfig):
        return _short_conv(hidden, config, theirs)
    if isinstance(config, DeltaConfig):
        return _delta(hidden, config, theirs)
    if isinstance(config, MambaConfig):
        return _mamba(hidden, config, theirs)
    return _mamba2(hidden, config, theirs)


def rows(
    name: str, shape: tuple[int, ...], begin: int, end: int, index: Index = ()
) -> tuple[Piece, ...]:
    """Rows `begin` to `end` of a matrix, or of a convolution kernel, with the last axis moved
    first."""
    return (Piece(name, shape, index, len(shape) > 1, (slice(begin, end),)),)


def _short_conv(hidden: int, config: ShortConvConfig, theirs: str) -> Pieces:
    channels = config.channels
    kernel = Piece(f"{theirs}conv.weight", (channels, 1, config.width), transpose=True)
    pieces: Pieces = {
        "attention.gates.weight": (
            Piece(f"{theirs}in_proj.weight", (3 * channels, hidden), transpose=True),
        ),
        "attention.conv.weight": (kernel,),
        "attention.out.weight": (
            Piece(f"{theirs}out_proj.weight", (hidden, channels), transpose=True),
        ),
    }
    if config.bias:
        pieces["attention.gates.bias"] = (Piece(f"{theirs}in_proj.bias", (3 * channels,)),)
        pieces["attention.conv.bias"] = (Piece(f"{theirs}conv.bias", (channels,)),)
        pieces["attention.out.bias"] = (Piece(f"{theirs}out_proj.bias", (hidden,)),)
    return pieces


def _mamba(hidden: int, config: MambaConfig, theirs: str) -> Pieces:
    channels, size, rank = config.channels, config.state_size, config.rank

    def matrix(name: str, outputs: int, inputs: int) -> tuple[Piece, ...]:
        return (Piece(f"{theirs}{name}.weight", (outputs, inputs), transpose=True),)

    kernel = Piece(f"{theirs}conv1d.weight", (channels, 1, config.width), transpose=True)
    pieces: Pieces = {
        "attention.x_gate.weight": matrix("in_proj", 2 * channels, hidden),
        "attention.conv.weight": (kernel,),
        "attention.select": matrix("x_proj", rank + 2 * size, channels),
        "attention.dt_weight": matrix("dt_proj", channels, rank),
        "attention.dt_bias": (Piece(f"{theirs}dt_proj.bias", (channels,)),),
        "attention.rate_logs": (Piece(f"{theirs}A_log", (channels, size)),),
        "attention.skip": (Piece(f"{theirs}D", (channels,)),),
        "attention.out.weight": matrix("out_proj", hidden, channels),
    }
    if config.conv_bias:
        pieces["attention.conv.bias"] = (Piece(f"{theirs}conv1d.bias", (channels,)),)
    if config.bias:
        pieces["attention.x_gate.bias"] = (Piece(f"{theirs}in_proj.bias", (2 * channels,)),)
        pieces["attention.out.bias"] = (Piece(f"{theirs}out_proj.bias", (hidden,)),)
    if config.norms == "weighted":
        for part, length in (("dt", rank), ("b", size), ("c", size)):
            name = f"{theirs}{part}_layernorm.weight"
            pieces[f"attention.{part}_norm"] = (Piece(name, (length,)),)
    return pieces


def _mamba2(hidden: int, config: Mamba2Config, theirs: str) -> Pieces:
    heads, inner = config.num_heads, config.num_heads * config.head_dim
    convolved = inner + 2 * config.groups * config.state_size
    total = inner + convolved + heads
    weights = {"weight": (hidden,), **({"bias": ()} if config.bias else {})}
    pieces: Pieces = {}
    for kind, inputs in weights.items():
        name, shape = f"{theirs}in_proj.{kind}", (total, *inputs)
        every = (EVERY,) * len(inputs)
        pieces[f"attention.gate_x.{kind}"] = (
            *rows(name, shape, 0, inner, (*every, EVERY, 0)),
            *rows(name, shape, inner, 2 * inner, (*every, EVERY, 1)),
        )
        pieces[f"attention.keys.{kind}"] = rows(name, shape, 2 * inner, inner + convolved)
        pieces[f"attention.dt.{kind}"] = rows(name, shape, inner + convolved, total)
    kernels = {"weight": (1, config.width), **({"bias": ()} if config.conv_bias else {})}
    for kind, rest in kernels.items():
        name, shape = f"{theirs}conv1d.{kind}", (convolved, *rest)
        pieces[f"attention.conv_x.{kind}"] = rows(name, shape, 0, inner)
        pieces[f"attention.conv_keys.{kind}"] = rows(name, shape, inner, convolved)
    if config.gate != "alone":
        pieces["attention.norm_weight"] = (Piece(f"{theirs}norm.weight", (inner,)),)
    for ours, name in (("rate_logs", "A_log"), ("dt_bias", "dt_bias"), ("skip", "D")):
        pieces[f"attention.{ours}"] = (Piece(theirs + name, (heads,)),)
    out = Piece(f"{theirs}out_proj.weight", (hidden, inner), transpose=True)
    pieces["attention.out.weight"] = (out,)
    if config.bias:
        pieces["attention.out.bias"] = (Piece(f"{theirs}out_proj.bias", (hidden,)),)
    return pieces


def _delta(hidden: int, config: DeltaConfig, theirs: str) -> Pieces:
    heads, share = config.key_heads, config.share
    values, numbers = share * config.value_dim, heads * share
    sizes = heads * config.key_dim, heads * config.key_dim, heads * values
    ends = list(itertools.accumulate(sizes))
    lanes = (
        slice(0, config.key_dim),
        slice(config.key_dim, 2 * config.key_dim),
        slice(2 * config.key_dim, config.convolved),
    )
    kernel = f"{theirs}conv1d.weight", (ends[-1], 1, config.width)
    parts = [(end - size, end, lane) for size, end, lane in zip(sizes, ends, lanes, strict=True)]
    out = Piece(f"{theirs}out_proj.weight", (hidden, heads * values), transpose=True)
    return {
        **(_split_delta if config.split else _fused_delta)(hidden, config, theirs, parts),
        "attention.conv.weight": tuple(
            piece
            for begin, end, lane in parts
            for piece in rows(*kernel, begin, end, (EVERY, EVERY, lane))
        ),
        "attention.rate_logs": (Piece(f"{theirs}A_log", (numbers,)),),
        "attention.dt_bias": (Piece(f"{theirs}dt_bias", (numbers,)),),
        "attention.norm_weight": (Piece(f"{theirs}norm.weight", (config.value_dim,)),),
        "attention.out.weight": (out,),
    }


Part = tuple[int, int, slice]  # row range of q, k or v, and their lanes in the parameter's heads


def _fused_delta(hidden: int, config: DeltaConfig, theirs: str, parts: list[Part]) -> Pieces:
    """Gated delta net stored as two matrices, grouped by key head."""
    inner = config.key_heads * (config.convolved + config.share * config.value_dim)
    both = 2 * config.key_heads * config.share
    qkv_gate, beta_dt = f"{theirs}in_proj_qkvz.weight", f"{theirs}in_proj_ba.weight"
    return {
        "attention.qkv_gate.weight": (Piece(qkv_gate, (inner, hidden), transpose=True),),
        "attention.beta_dt.weight": (Piece(beta_dt, (both, hidden), transpose=True),),
    }


def _split_delta(hidden: int, config: DeltaConfig, theirs: str, parts: list[Part]) -> Pieces:
    """Gated delta net stored as four matrices, each with its heads in order."""
    numbers, values = config.key_heads * config.share, config.share * config.value_dim
    qkv, shape = f"{theirs}in_proj_qkv.weight", (parts[-1][1], hidden)
    gates = slice(config.convolved, config.convolved + values)
    found = [
        piece
        for begin, end, lane in parts
        for piece in rows(qkv, shape, begin, end, (EVERY, EVERY, lane))
    ]
    gate = f"{theirs}in_proj_z.weight", (config.key_heads * values, hidden)
    found.append(Piece(*gate, (EVERY, EVERY, gates), transpose=True))
    beta_dt = tuple(
        Piece(f"{theirs}in_proj_{name}.weight", (numbers, hidden), (EVERY, EVERY, part), True)
        for part, name in enumerate("ba")
    )
    return {"attention.qkv_gate.weight": tuple(found), "attention.beta_dt.weight": beta_dt}
