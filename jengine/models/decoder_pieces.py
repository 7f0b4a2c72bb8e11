"""The checkpoint tensors of the shared decoder: parameter path -> pieces.

In: a ModelConfig and a family's Names. Must not know files or devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jengine.config import (
    AttentionConfig,
    ExpertsConfig,
    FfnConfig,
    LatentConfig,
    MixerConfig,
    ModelConfig,
)
from jengine.models.checkpoint import EVERY, Index, Names, Piece
from jengine.models.latent_pieces import latent_pieces

Pieces = dict[str, tuple[Piece, ...]]


def decoder_pieces(config: ModelConfig, names: Names) -> Pieces:
    """Parameter path -> pieces, for the shared decoder body."""
    vocab, hidden = config.vocab_size, config.hidden_size
    pieces: Pieces = {"embed.weight": (Piece(names.embed_weight, (vocab, hidden)),)}
    if config.learned_positions:
        name = f"{names.prefix}{names.positions}.weight"
        pieces["position_embed.weight"] = (Piece(name, (config.max_position, hidden)),)
    pieces |= _norm(config, "norm", f"{names.prefix}{names.final_norm}", (hidden,))
    if not config.tie_embeddings:
        pieces["head.weight"] = (Piece(f"{names.head}.weight", (vocab, hidden), transpose=True),)
    for layer, own in enumerate(config.layers):
        theirs = f"{names.prefix}{names.layers}.{layer}."
        ours = {
            **_layer_norms(config, names, theirs),
            **_mixer(config.hidden_size, own.mixer, names, theirs),
            **_ffn(config.hidden_size, own.ffn, names, theirs),
        }
        pieces.update({f"layers.{layer}.{path}": found for path, found in ours.items()})
    return pieces


def _norm(config: ModelConfig, path: str, name: str, shape: tuple[int, ...]) -> Pieces:
    pieces: Pieces = {f"{path}.weight": (Piece(f"{name}.weight", shape),)}
    if config.norm == "layer":
        pieces[f"{path}.bias"] = (Piece(f"{name}.bias", shape),)
    return pieces


def _layer_norms(config: ModelConfig, names: Names, layer: str) -> Pieces:
    pieces: Pieces = {}
    theirs = {
        "before": {"before_attention": names.before_attention, "before_mlp": names.before_mlp},
        "after": {"after_attention": names.after_attention, "after_mlp": names.after_mlp},
    }
    for place, found in theirs.items():
        if config.norm_places in (place, "around"):
            for path, name in found.items():
                pieces |= _norm(config, path, layer + name, (config.hidden_size,))
    return pieces


def _mixer(hidden: int, config: MixerConfig, names: Names, layer: str) -> Pieces:
    if isinstance(config, LatentConfig):
        return latent_pieces(hidden, config, layer)
    return _attention(hidden, config, names, layer)


def _attention(hidden: int, config: AttentionConfig, names: Names, layer: str) -> Pieces:
    """Queries, keys and values share one parameter [hidden, kv, group + 2, dim]."""
    dim, kv, group = config.head_dim, config.num_kv_heads, config.group
    heads = config.num_heads * dim
    sizes = (heads, kv * dim, kv * dim)
    ours = (slice(0, group), group, group + 1)
    qkv = [layer + name for name in names.qkv]
    pieces: Pieces = {
        "attention.qkv.weight": _matrices(
            names, qkv, hidden, sizes, [(EVERY, EVERY, part) for part in ours]
        ),
        "attention.out.weight": _matrices(
            names, [layer + names.attention_out], heads, (hidden,), [()]
        ),
    }
    if config.qkv_bias:
        pieces["attention.qkv.bias"] = _biases(qkv, sizes, [(EVERY, part) for part in ours])
    if config.output_bias:
        pieces["attention.out.bias"] = _biases([layer + names.attention_out], (hidden,), [()])
    if config.sinks:
        pieces["attention.sinks"] = (Piece(layer + names.sinks, (config.num_heads,)),)
    if config.qk_norm is not None:
        whole = config.qk_norm == "whole"
        for path, name, size in (
            ("attention.q_norm", names.q_norm, heads if whole else dim),
            ("attention.k_norm", names.k_norm, kv * dim if whole else dim),
        ):
            pieces[f"{path}.weight"] = (Piece(f"{layer}{name}.weight", (size,)),)
    return pieces


def _ffn(hidden: int, config: FfnConfig, names: Names, layer: str) -> Pieces:
    if isinstance(config, ExpertsConfig):
        return _experts(hidden, config, names, layer)
    inner = config.intermediate_size
    up = [layer + name for name in names.gate_up]
    down = [layer + names.down]
    pieces = {"mlp.down.weight": _matrices(names, down, inner, (hidden,), [()])}
    if config.gated:
        parts: list[Index] = [(EVERY, 0), (EVERY, 1)]
        return pieces | {"mlp.gate_up.weight": _matrices(names, up, hidden, (inner, inner), parts)}
    return pieces | {
        "mlp.up.weight": _matrices(names, up, hidden, (inner,), [()]),
        "mlp.up.bias": _biases(up, (inner,), [()]),
        "mlp.down.bias": _biases(down, (hidden,), [()]),
    }


def _experts(hidden: int, config: ExpertsConfig, names: Names, layer: str) -> Pieces:
    """Each expert's matrices are one slice of [experts, hidden, inner, 2] and the like."""
    inner, count = config.intermediate_size, config.num_experts
    gate_up: list[Piece] = []
    down: list[Piece] = []
    for expert in range(count):
        theirs = f"{layer}{names.experts}.{expert}."
        both = [theirs + name for name in names.expert_gate_up]
        parts: list[Index] = [(expert, EVERY, EVERY, 0), (expert, EVERY, EVERY, 1)]
        gate_up += _matrices(names, both, hidden, (inner, inner), parts)
        down += _matrices(names, [theirs + names.expert_down], inner, (hidden,), [(expert,)])
    return {
        "mlp.router.weight": _matrices(names, [layer + names.router], hidden, (count,), [()]),
        "mlp.gate_up.weight": tuple(gate_up),
        "mlp.down.weight": tuple(down),
    }


def _matrices(
    names: Names, theirs: Sequence[str], inputs: int, outputs: Sequence[int], ours: Sequence[Index]
) -> tuple[Piece, ...]:
    """Matrices [outputs[i], inputs] for the slices ours[i], each a tensor or all fused in one."""
    pieces = []
    for (name, rows, source), index in zip(_sources(theirs, outputs), ours, strict=True):
        weight = f"{name}.weight"
        if names.stored_in_out:
            where = (EVERY, *source) if source else ()
            pieces.append(Piece(weight, (inputs, rows), index, source=where))
        else:
            pieces.append(Piece(weight, (rows, inputs), index, transpose=True, source=source))
    return tuple(pieces)


def _biases(
    theirs: Sequence[str], sizes: Sequence[int], ours: Sequence[Index]
) -> tuple[Piece, ...]:
    return tuple(
        Piece(f"{name}.bias", (size,), index, source=source)
        for (name, size, source), index in zip(_sources(theirs, sizes), ours, strict=True)
    )


def _sources(theirs: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, int, Index]]:
    """Per size: the tensor, its length, and the slice of it; () is the whole tensor."""
    if len(theirs) == len(sizes):
        yield from ((name, size, ()) for name, size in zip(theirs, sizes, strict=True))
        return
    (name,) = theirs
    ends = list(itertools.accumulate(sizes))
    for size, end in zip(sizes, ends, strict=True):
        yield name, ends[-1], (slice(end - size, end),)
