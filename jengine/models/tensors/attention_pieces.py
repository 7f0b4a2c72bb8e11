"""Checkpoint tensors of attention, by parameter path.

jengine rotates lane i of a head's first half with lane i of its second half (half-split RoPE). For
checkpoints with interleaved pairs or partial rotation, the lanes of q and k are permuted here,
which leaves scores unchanged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jengine.config import AttentionConfig
from jengine.models.tensors.checkpoint import EVERY, Index, Names, Piece
from jengine.models.tensors.matrix_pieces import Pieces, biases, matrices


class Lanes(NamedTuple):
    """A range of a head's lanes, in the parameter and in the checkpoint."""

    ours: slice
    theirs: slice


ALL_LANES = (Lanes(EVERY, EVERY),)


def attention_pieces(
    hidden: int, config: AttentionConfig, names: Names, layer: str, inputs: int | None = None
) -> Pieces:
    """QKV share one parameter [inputs, kv, group + 2, dim]; `inputs` defaults to the hidden
    size."""
    kv, heads = config.num_kv_heads, config.num_heads * config.head_dim
    if config.source is not None:
        return _reading_pieces(hidden, config, names, layer)
    pieces: Pieces = {
        "attention.qkv.weight": _qkv(hidden if inputs is None else inputs, config, names, layer),
        "attention.out.weight": matrices(
            names, [layer + names.attention_out], heads, (hidden,), [()]
        ),
    }
    if config.qkv_bias:
        pieces["attention.qkv.bias"] = _qkv(None, config, names, layer)
    if config.output_bias:
        pieces["attention.out.bias"] = biases([layer + names.attention_out], (hidden,), [()])
    if config.gated and names.attention_gate:
        gate = [layer + names.attention_gate]
        pieces["attention.gate.weight"] = matrices(names, gate, hidden, (heads,), [()])
    elif config.gated:
        pieces["attention.gate.weight"] = (_gate(hidden, config, names, layer),)
        if config.qkv_bias:
            pieces["attention.gate.bias"] = (_gate(None, config, names, layer),)
    if config.out_norm:
        pieces["attention.out_norm.weight"] = (Piece(f"{layer}{names.out_norm}.weight", (heads,)),)
    if config.sinks:
        pieces["attention.sinks"] = (Piece(layer + names.sinks, (config.num_heads,)),)
    if config.distance_bias is not None and config.distance_bias.is_own:
        shape = (config.distance_bias.buckets, config.num_heads)
        name = f"{layer}{names.distance_bias}.weight"
        pieces["attention.distance_bias"] = (Piece(name, shape, transpose=True),)
    if config.qk_norm not in (None, "unit"):
        q, k = f"{layer}{names.q_norm}.weight", f"{layer}{names.k_norm}.weight"
        pieces["attention.q_norm.weight"] = _head_norm(q, (kv, config.group), config, names)
        pieces["attention.k_norm.weight"] = _head_norm(k, (kv,), config, names)
    return pieces


def _reading_pieces(hidden: int, config: AttentionConfig, names: Names, layer: str) -> Pieces:
    """Pieces of a layer without its own keys and values."""
    assert rotated_lanes(config, names) is ALL_LANES and not names.qkv_by_head
    heads, q, out = config.num_heads * config.head_dim, layer + names.qkv[0], names.attention_out
    pieces: Pieces = {
        "attention.q.weight": matrices(names, [q], hidden, (heads,), [()]),
        "attention.q_norm.weight": (Piece(f"{layer}{names.q_norm}.weight", (config.head_dim,)),),
        "attention.out.weight": matrices(names, [layer + out], heads, (hidden,), [()]),
    }
    if config.qkv_bias:
        pieces["attention.q.bias"] = biases([q], (heads,), [()])
    if config.output_bias:
        pieces["attention.out.bias"] = biases([layer + out], (hidden,), [()])
    return pieces


def rotated_lanes(config: AttentionConfig, names: Names) -> tuple[Lanes, ...]:
    """Lane permutation of queries and keys."""
    dim = config.head_dim
    rotated = dim if config.rope is None or config.rope.rotated is None else config.rope.rotated
    turned = names.rotates_neighbours or names.rotates_backwards
    if config.rope is None or (rotated == dim and not turned):
        return ALL_LANES
    half, pairs = dim // 2, rotated // 2
    if names.rotates_neighbours:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, rotated)
    if names.rotates_backwards:  # equivalent to swapping the lanes of each pair
        first, second = second, first
    lanes = (Lanes(slice(0, pairs), first), Lanes(slice(half, half + pairs), second))
    if rotated == dim:
        return lanes
    middle = rotated + half - pairs  # split point of the unrotated lanes
    return (
        *lanes,
        Lanes(slice(pairs, half), slice(rotated, middle)),
        Lanes(slice(half + pairs, dim), slice(middle, dim)),
    )


def _qkv(
    hidden: int | None, config: AttentionConfig, names: Names, layer: str
) -> tuple[Piece, ...]:
    """QKV weight, or the bias if `hidden` is None."""
    dim, kv, group = config.head_dim, config.num_kv_heads, config.group
    parts = (slice(0, group), group, group + 1)[: 3 - config.keys_are_values]
    qkv = [layer + name for name in names.qkv[: len(parts)]]
    lanes = rotated_lanes(config, names)
    in_parts = not (names.qkv_by_head or names.qkv_blocks)
    gates_queries = config.gated and not names.attention_gate
    if lanes is ALL_LANES and in_parts and not gates_queries:
        sizes = (config.num_heads * dim, kv * dim, kv * dim)[: len(parts)]
        if hidden is None:
            found = biases(qkv, sizes, [(EVERY, part) for part in parts])
            return found if names.key_bias else (found[0], *found[2:])
        return matrices(names, qkv, hidden, sizes, [(EVERY, EVERY, part) for part in parts])
    counts = (config.num_heads, kv, kv)[: len(parts)]
    pieces = []
    for number, part in enumerate(parts):
        if hidden is None and number == 1 and not names.key_bias:
            continue
        for ours, theirs in lanes if number < 2 else ALL_LANES:
            index: Index = (EVERY, part, ours)
            name, view, source = _heads(qkv, number, counts, dim, theirs, names)
            if gates_queries and number == 0:
                view, source = (counts[0], 2, dim), (EVERY, 0, theirs)
            rows = math.prod(view)
            if hidden is None:
                pieces.append(Piece(f"{name}.bias", (rows,), index, source=source, view=view))
            else:
                index = (EVERY, *index)
                shape = (rows, hidden)
                weight = f"{name}.weight"
                pieces.append(Piece(weight, shape, index, True, source=source, view=view))
    return tuple(pieces)


def _gate(hidden: int | None, config: AttentionConfig, names: Names, layer: str) -> Piece:
    """Output gate (weight or bias), interleaved per head with the query in one tensor."""
    view = (config.num_heads, 2, config.head_dim)
    name, rows, source = layer + names.qkv[0], math.prod(view), (EVERY, 1)
    if hidden is None:
        return Piece(f"{name}.bias", (rows,), source=source, view=view)
    return Piece(f"{name}.weight", (rows, hidden), (), True, source=source, view=view)


def _heads(
    qkv: list[str], number: int, counts: tuple[int, ...], dim: int, lanes: slice, names: Names
) -> tuple[str, tuple[int, ...], Index]:
    """Tensor name, view and slice for lanes of the queries, keys or values."""
    if len(qkv) == len(counts):
        return qkv[number], (counts[number], dim), (EVERY, lanes)
    [name] = qkv
    if names.qkv_by_head:
        group = counts[0] // counts[1]
        part = (slice(0, group), group, group + 1)[number]
        return name, (counts[1], group + 2, dim), (EVERY, part, lanes)
    if names.qkv_blocks:
        view = names.qkv_blocks, 3, counts[0] // names.qkv_blocks, dim
        return name, view, (EVERY, (0, 2, 1)[number], EVERY, lanes)
    begin = sum(counts[:number])
    return name, (sum(counts), dim), (slice(begin, begin + counts[number]), lanes)


def _head_norm(
    name: str, heads: tuple[int, ...], config: AttentionConfig, names: Names
) -> tuple[Piece, ...]:
    """QK-norm of one head, or of all `heads` as one vector."""
    dim, lanes = config.head_dim, rotated_lanes(config, names)
    if config.qk_norm in ("head", "behind_rotation"):
        if lanes is ALL_LANES:
            return (Piece(name, (dim,)),)
        return tuple(Piece(name, (dim,), (ours,), source=(theirs,)) for ours, theirs in lanes)
    count, every = math.prod(heads), (EVERY,) * len(heads)
    is_matrix = config.qk_norm == "layer"  # in checkpoints
    shape, view = ((count, dim), heads) if is_matrix else ((count * dim,), (*heads, dim))
    if lanes is ALL_LANES:
        return (Piece(name, shape),)
    return tuple(
        Piece(name, shape, (*every, ours), source=(*every, theirs), view=view)
        for ours, theirs in lanes
    )
