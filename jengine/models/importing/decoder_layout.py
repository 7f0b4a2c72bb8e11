"""Infers the shared decoder's layout from tensor names and shapes.

In: names and shapes, and the architecture's `Meaning`. Out: a DecoderLayout, or a CheckpointError
that lists the tensors not understood. Must not know files or config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from jengine.models.importing.experts import CHOICE_ELSEWHERE, ROUTER, ExpertsLayout, experts_of
from jengine.models.importing.meanings import PLAIN_MEANING, Meaning
from jengine.models.importing.norm_places import NormNames, read_norms
from jengine.models.importing.tensors import (
    Shape,
    found_module,
    found_names,
    joined,
    listed,
    refuse,
    split_by_layer,
)
from jengine.models.tensors.checkpoint import FREQUENCIES, IgnoredTensor, Names

EMBED = (
    "embeddings.word_embeddings", "embed_tokens", "wte",
    "word_embeddings", "embed_in", "tok_embeddings", "tokens_embed", "embeddings",
)  # fmt: skip
EMBED_NORM = ("layernorm_embedding", "embeddings.LayerNorm")
POSITIONS = ("wpe", "embed_positions", "positions_embed", "embeddings.position_embeddings")
TYPES = "embeddings.token_type_embeddings"
FINAL_NORM = (
    "norm", "ln_f", "final_layernorm", "final_layer_norm", "final_norm", "norm_f", "layer_norm",
    "embedding_norm", "encoder.ln", "encoder.LayerNorm", "LayerNorm",
)  # fmt: skip
HEAD = (
    "lm_head", "output", "embed_out", "output_projection", "cls.predictions.decoder",
    "cls.predictions", "generator_lm_head",
)  # fmt: skip
# Dense and norm of the transform before the head.
TRANSFORM = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    ("lm_head.dense", "lm_head.layer_norm"),
    ("generator_predictions.dense", "generator_predictions.LayerNorm"),
)  # fmt: skip
ATTENTION = ("self_attn", "attn.attention", "attn", "attention", "self_attention")
# "": the feed-forward block's tensors are directly in the layer.
MLP = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "")
SPLIT = (("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv"), ("query", "key", "value"),
         ("self.query", "self.key", "self.value"))  # fmt: skip
FUSED = ("qkv_proj", "query_key_value", "c_attn")
OUT = ("o_proj", "out_proj", "wo", "dense", "c_proj", "output.dense")
GATED = (("gate_proj", "up_proj"), ("w1", "w3"), ("gate_up_proj",))
PLAIN = (("up_proj",), ("fc1",), ("c_fc",), ("fc_in",), ("dense_h_to_4h",),
         ("intermediate.dense",))  # fmt: skip
DOWN = ("down_proj", "w2", "fc2", "c_proj", "fc_out", "dense_4h_to_h", "output.dense")
QK_NORMS = (
    ("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"),
)  # fmt: skip
BLOCKS = 4  # blocks of heads in a fused QKV tensor
SINKS = ("sinks", "softmax_offset")
GATE = "gate_proj"  # gate of the attention output
NO_MLP: dict[str, Any] = {"gated": True, "mlp_bias": False, "inner_size": None}
FREQUENCY = re.compile(r".*rotary_emb\.inv_freq")


@dataclass(frozen=True)
class DecoderLayout:
    """Structure of a decoder as inferred from tensors."""

    names: Names
    layers: int
    vocab_size: int
    hidden_size: int
    inner_size: int | None  # of dense layers; None: no dense layers
    norms: NormNames
    layer_norm: bool  # layer norms (mean and bias) instead of RMS norms
    qkv_bias: bool
    output_bias: bool
    qk_norm: Literal["head", "whole"] | None
    sinks: bool
    gated_attention: bool
    gated: bool
    mlp_bias: bool
    has_head: bool
    head_bias: bool
    transform_bias: bool | None = None  # None: no transform before the head
    token_types: int = 0
    positions: int = 0  # rows of the learned position table; 0: none
    experts: ExpertsLayout | None = None
    sparse: frozenset[int] = frozenset()  # layers with experts


def read_layout(shapes: Mapping[str, Shape], meaning: Meaning = PLAIN_MEANING) -> DecoderLayout:
    """Infer the layout. Raises CheckpointError."""
    ignored = (
        FREQUENCIES,
        IgnoredTensor(FREQUENCY.pattern, FREQUENCIES.reason),
        *(IgnoredTensor(rf".*\.{name}\..*", reason) for name, reason in meaning.unused.items()),
    )
    shapes = {
        name: shape
        for name, shape in shapes.items()
        if not any(one.matches(name) for one in ignored)
    }
    prefix, embed = _embedding(shapes)
    layers_name, outside, layers = split_by_layer(shapes, prefix)
    attention = found_module(layers[0], ATTENTION)
    mlp, dense, sparse = _kinds_of_mlp(layers)
    first = {name: shape for name, shape in layers[0].items() if not _is_in(name, mlp)}
    reading = _Attention(first, attention, meaning)
    norms = read_norms(first, meaning)
    experts = experts_of(layers[min(sparse)], mlp) if sparse else None
    mlp_names, mlp_facts = _mlp(dense, mlp) if dense is not None else ({}, NO_MLP)
    around = _Surroundings(outside, prefix, embed, meaning)
    layer_norm = around.has_norm_bias or any(
        f"{name}.bias" in first for name in norms.names.values()
    )
    _refuse_unknown(first, {*reading.used, *norms.names.values()}, layer_norm)
    around.refuse_unknown()
    names: dict[str, Any] = {
        "prefix": prefix, "embed": embed, "layers": layers_name, "ignored": ignored,
        "rotates_neighbours": meaning.rotates_neighbours,
        "rotates_backwards": meaning.rotates_backwards, "stored_in_out": meaning.stored_in_out,
        **reading.names, **norms.names, **mlp_names,
        **({} if experts is None else experts.names), **around.names,
    }  # fmt: skip
    vocab, hidden = shapes[f"{prefix}{embed}.weight"]
    return DecoderLayout(
        Names(**names), len(layers), vocab, hidden, norms=norms, layer_norm=layer_norm,
        **reading.facts, **mlp_facts, **around.facts, experts=experts, sparse=frozenset(sparse),
    )  # fmt: skip


class _Surroundings:
    """Tensors outside the layers: their `names`, and `facts`, fields of the layout."""

    def __init__(self, tensors: Mapping[str, Shape], prefix: str, embed: str, meaning: Meaning):
        self._tensors, self._prefix = tensors, prefix
        self.has_norm_bias = any(f"{prefix}{name}.bias" in tensors for name in FINAL_NORM)
        heads = (one for one in HEAD if {f"{one}.weight", f"{one}.bias"} & tensors.keys())
        head = next(heads, None)
        transform = next((two for two in TRANSFORM if f"{two[1]}.weight" in tensors), ())
        own: dict[str, str | None] = {  # prefix included
            "embed_norm": self._first(EMBED_NORM) if meaning.embed_norm else None,
            "positions": self._first(POSITIONS), "types": self._first((TYPES,)),
        }  # fmt: skip
        if meaning.has_final_norm:
            known = [*FINAL_NORM, *(() if meaning.embed_norm else EMBED_NORM)]
            (own["final_norm"],) = found_names(
                tensors, [(name,) for name in known], "the last norm", prefix
            )
        found = {role: name for role, name in own.items() if name is not None}
        ends = dict(zip(("head_dense", "head_norm"), transform, strict=False))
        self.names: dict[str, Any] = {"head": head or "lm_head", **ends, **found}
        self._known = {head, *transform, *(f"{prefix}{name}" for name in (embed, *found.values()))}
        self.facts: dict[str, Any] = {
            "has_head": f"{head}.weight" in tensors, "head_bias": f"{head}.bias" in tensors,
            "transform_bias": f"{transform[0]}.bias" in tensors if transform else None,
            "token_types": self._rows(own["types"]), "positions": self._rows(own["positions"]),
        }  # fmt: skip

    def refuse_unknown(self) -> None:
        unknown = [name for name in self._tensors if name.rpartition(".")[0] not in self._known]
        if unknown:
            refuse(f"outside of its layers it has {listed(unknown)}, which the decoder has not")

    def _first(self, names: Sequence[str]) -> str | None:
        return next((one for one in names if f"{self._prefix}{one}.weight" in self._tensors), None)

    def _rows(self, name: str | None) -> int:
        return 0 if name is None else self._tensors[f"{self._prefix}{name}.weight"][0]


def _embedding(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    """Tensor prefix, and name of the embedding."""
    for name in EMBED:
        found = [key for key in shapes if re.fullmatch(rf"(.*\.)?{name}\.weight", key)]
        if len(found) == 1 and len(shapes[found[0]]) == 2:
            return found[0].removesuffix(f"{name}.weight"), name
    refuse(f"it has no token embedding under one of the names {', '.join(EMBED)}")


def _is_in(name: str, module: str) -> bool:
    """Whether a layer's tensor is in this module."""
    if name in CHOICE_ELSEWHERE:
        return True
    if module:
        return name.startswith(f"{module}.")
    return name.rpartition(".")[0] in {*DOWN, *(one for names in (*GATED, *PLAIN) for one in names)}


def _kinds_of_mlp(
    layers: Mapping[int, Mapping[str, Shape]],
) -> tuple[str, Mapping[str, Shape] | None, list[int]]:
    """The feed-forward module's name, the tensors of a layer with a dense one, and the layers with
    experts. Raises CheckpointError if layers differ in anything else."""
    mlp = found_module(layers[0], MLP)
    kinds: dict[bool, Mapping[str, Shape]] = {}
    sparse = []
    for number, layer in layers.items():
        is_sparse = any(joined(mlp, f"{name}.weight") in layer for name in ROUTER)
        if is_sparse:
            sparse.append(number)
        first = kinds.setdefault(is_sparse, layer)
        _expect_alike(number, first, layer)
        rest = [
            {name: shape for name, shape in one.items() if not _is_in(name, mlp)}
            for one in (layers[0], layer)
        ]
        _expect_alike(number, *rest)
    return mlp, kinds.get(False), sparse


def _expect_alike(number: int, first: Mapping[str, Shape], other: Mapping[str, Shape]) -> None:
    differing = sorted(
        name for name in first.keys() | other.keys() if first.get(name) != other.get(name)
    )
    if differing:
        refuse(
            f"layer {number} differs from layer 0 in {listed(differing)}: not all layers are alike"
        )


class _Attention:
    """A layer's attention: `names` of its tensors, and all modules `used`, so that others can be
    refused."""

    def __init__(self, layer: Mapping[str, Shape], module: str, meaning: Meaning):
        fused = [(joined(module, name),) for name in _fused(meaning)]
        split = [tuple(joined(module, part) for part in parts) for parts in SPLIT]
        qkv = found_names(layer, [*split, *fused], "qkv")
        outs = [(joined(module, name),) for name in OUT]
        (out,) = found_names(layer, outs, "attention's output")
        qk = next((p for p in QK_NORMS if joined(module, f"{p[0]}.weight") in layer), ())
        qk_names = tuple(joined(module, name) for name in qk)
        gate = joined(module, GATE)
        sinks = next((s for s in (joined(module, n) for n in SINKS) if s in layer), "")
        has_gate, has_bias = f"{gate}.weight" in layer, f"{qkv[0]}.bias" in layer
        self.used = [*qkv, out, *qk_names, *([gate] if has_gate else [])]
        if sinks:
            self.used.append(sinks)
        if has_gate and has_bias and f"{gate}.bias" not in layer:
            refuse(f"{gate} has no bias, which queries have")
        self.names = {
            "qkv": qkv, "key_bias": f"{qkv[len(qkv) // 2]}.bias" in layer or not has_bias,
            "attention_out": out, "sinks": sinks,
            "qkv_by_head": meaning.qkv_order == "heads",
            "qkv_blocks": BLOCKS if meaning.qkv_order == "blocks" else 0,
            "attention_gate": gate if has_gate else "",
            **dict(zip(("q_norm", "k_norm"), qk_names, strict=False)),
        }  # fmt: skip
        self.facts: dict[str, Any] = {
            "qkv_bias": has_bias, "output_bias": f"{out}.bias" in layer,
            "qk_norm": _qk_norm(layer, qk_names, qkv), "sinks": bool(sinks),
            "gated_attention": has_gate,
        }  # fmt: skip


def _fused(meaning: Meaning) -> tuple[str, ...]:
    """Accepted names of fused QKV projections. Only qkv_proj implies the order of q, k and v;
    others need `meaning.qkv_order`."""
    return FUSED[:1] if meaning.qkv_order is None else FUSED


def _mlp(layer: Mapping[str, Shape], mlp: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensor names, DecoderLayout fields) of a layer's dense feed-forward block."""
    gates = [(True, parts) for parts in GATED] + [(False, parts) for parts in PLAIN]
    ups = [tuple(joined(mlp, part) for part in parts) for _, parts in gates]
    up = found_names(layer, ups, "the MLP's first matmul")
    (down,) = found_names(layer, [(joined(mlp, name),) for name in DOWN], "the MLP's output")
    _refuse_unknown(
        {name: shape for name, shape in layer.items() if _is_in(name, mlp)}, {*up, down}, False
    )
    gated = gates[ups.index(up)][0]
    size = layer[f"{up[0]}.weight"][0] // (2 if gated and len(up) == 1 else 1)
    if f"{up[0]}.bias" in layer:
        size = layer[f"{up[0]}.bias"][0] // (2 if gated and len(up) == 1 else 1)
    facts = {"gated": gated, "mlp_bias": f"{down}.bias" in layer, "inner_size": size}
    return {"gate_up": up, "down": down}, facts


def _qk_norm(
    layer: Mapping[str, Shape], names: tuple[str, ...], qkv: tuple[str, ...]
) -> Literal["head", "whole"] | None:
    if not names:
        return None
    (size,) = layer[f"{names[0]}.weight"]
    whole = len(qkv) > 1 and size == layer[f"{qkv[0]}.weight"][0]
    return "whole" if whole else "head"


def _refuse_unknown(layer: Mapping[str, Shape], used: set[str], layer_norm: bool) -> None:
    def understood(name: str) -> bool:
        module, _, kind = name.rpartition(".")
        is_norm = len(layer[name]) == 1 and ("norm" in module or module.startswith("ln_"))
        if name in used:
            return True
        return module in used and (kind == "weight" or (kind == "bias" and layer_norm >= is_norm))

    unknown = [name for name in layer if not understood(name)]
    if unknown:
        refuse(f"a layer has {listed(unknown)}, which the decoder's layers have not")


def shown(layout: DecoderLayout) -> dict[str, str]:
    """Inferred parameter names, for display."""
    names = layout.names
    found = {
        "embedding": names.embed_weight,
        "queries, keys, values": " + ".join(names.qkv),
        "attention's output": names.attention_out,
        "norms": ", ".join(layout.norms.names.values()) or "without parameters",
        "last norm": names.prefix + names.final_norm,
        "output head": names.head if layout.has_head else "the embedding (tied)",
    }
    if layout.inner_size is not None:
        found["MLP"] = f"{' + '.join(names.gate_up)} -> {names.down}"
    if layout.experts is not None:
        found["experts"] = f"{names.router} -> {names.experts}, in {len(layout.sparse)} layers"
    if layout.positions:
        found["positions"] = names.prefix + names.positions
    if layout.qk_norm:
        found["norms of queries and keys"] = f"{names.q_norm}, {names.k_norm} ({layout.qk_norm})"
    biases = [
        field.name.replace("_", " ") for field in fields(layout)
        if field.name.endswith("_bias") and getattr(layout, field.name)
    ]  # fmt: skip
    return found | ({"biases": ", ".join(biases)} if biases else {})
