"""Infers the shared decoder's layout from tensor names and shapes.

In: names and shapes. Out: a Layout, or a CheckpointError that lists the tensors not understood.
Must not know files or config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NoReturn

from jengine.errors import CheckpointError
from jengine.models.tensors.checkpoint import FREQUENCIES, IgnoredTensor, Names

Shape = tuple[int, ...]
EMBED = ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "embeddings")
LAYERS = ("layers", "h", "blocks")
FINAL_NORM = ("norm", "ln_f", "final_layernorm", "final_layer_norm", "final_norm", "norm_f")
HEAD = ("lm_head", "output", "embed_out")
ATTENTION = ("self_attn", "attn", "attention", "self_attention")
MLP = ("mlp", "feed_forward", "ffn")
QKV = (("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv"), ("query", "key", "value"), ("qkv_proj",))
OUT = ("o_proj", "out_proj", "wo", "dense", "c_proj")
GATED = (("gate_proj", "up_proj"), ("w1", "w3"), ("gate_up_proj",))
PLAIN = (("up_proj",), ("fc1",), ("c_fc",), ("fc_in",), ("dense_h_to_4h",))
DOWN = ("down_proj", "w2", "fc2", "c_proj", "fc_out", "dense_4h_to_h")
QK_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"))
FREQUENCY = re.compile(r".*rotary_emb\.inv_freq")


@dataclass(frozen=True)
class NormNames:
    """A known naming scheme of a layer's norms and their places."""

    places: Literal["before", "after", "around"]
    names: Mapping[str, str]
    block: Literal["serial", "parallel_one_norm"] = "serial"


BEFORE = (
    ("input_layernorm", "post_attention_layernorm"), ("input_layernorm", "pre_mlp_layernorm"),
    ("ln_1", "ln_2"), ("attention_norm", "ffn_norm"), ("attn_norm", "mlp_norm"),
    ("attn_norm", "ffn_norm"), ("norm1", "norm2"), ("norm_1", "norm_2"),
)  # fmt: skip
NORMS = (
    NormNames(
        "around",
        {
            "before_attention": "input_layernorm",
            "after_attention": "post_attention_layernorm",
            "before_mlp": "pre_feedforward_layernorm",
            "after_mlp": "post_feedforward_layernorm",
        },
    ),
    NormNames(
        "after",
        {
            "after_attention": "post_attention_layernorm",
            "after_mlp": "post_feedforward_layernorm",
        },
    ),
    *(NormNames("before", {"before_attention": one, "before_mlp": two}) for one, two in BEFORE),
    *(
        NormNames("before", {"before_attention": one}, "parallel_one_norm")
        for one in ("input_layernorm", "ln_1", "ln")
    ),
)


@dataclass(frozen=True)
class Layout:
    """Structure of a decoder as inferred from tensors."""

    names: Names
    layers: int
    vocab_size: int
    hidden_size: int
    inner_size: int
    norms: NormNames
    layer_norm: bool  # the mean is subtracted, and there are biases
    qkv_bias: bool
    output_bias: bool
    qk_norm: Literal["head", "whole"] | None
    gated: bool
    mlp_bias: bool
    has_head: bool
    head_bias: bool


def read_layout(shapes: Mapping[str, Shape]) -> Layout:
    """Infer the layout. Raises CheckpointError."""
    shapes = {name: shape for name, shape in shapes.items() if not FREQUENCY.fullmatch(name)}
    prefix, embed = _embedding(shapes)
    outside, layers = _split(shapes, prefix)
    first = layers[0]
    for number, other in layers.items():
        if other != first:
            _refuse_other_layer(number, first, other)
    attention, mlp = _module(first, ATTENTION), _module(first, MLP)
    qkv = _found(first, [tuple(f"{attention}.{part}" for part in parts) for parts in QKV], "qkv")
    gates = [(True, parts) for parts in GATED] + [(False, parts) for parts in PLAIN]
    ups = [tuple(f"{mlp}.{part}" for part in parts) for _, parts in gates]
    up = _found(first, ups, "the MLP's first matmul")
    gated = gates[ups.index(up)][0]
    (out,) = _found(first, [(f"{attention}.{name}",) for name in OUT], "attention's output")
    (down,) = _found(first, [(f"{mlp}.{name}",) for name in DOWN], "the MLP's output")
    qk = next((p for p in QK_NORMS if f"{attention}.{p[0]}.weight" in first), None)
    qk_names = () if qk is None else tuple(f"{attention}.{name}" for name in qk)
    norms = _layer_norms(first)
    (final,) = _found(outside, [(name,) for name in FINAL_NORM], "the last norm", prefix)
    head = next((name for name in HEAD if f"{name}.weight" in outside), None)
    found: dict[str, Any] = {
        "prefix": prefix, "embed": embed, "layers": _layers_name(shapes, prefix),
        "final_norm": final, "head": head or "lm_head", "qkv": qkv, "attention_out": out,
        "gate_up": up, "down": down, **dict(zip(("q_norm", "k_norm"), qk_names, strict=False)),
        **norms.names,
        "ignored": (FREQUENCIES, IgnoredTensor(FREQUENCY.pattern, FREQUENCIES.reason)),
    }  # fmt: skip
    names = replace(Names(), **found)
    layer_norm = f"{prefix}{final}.bias" in outside
    used = {*qkv, *up, out, down, *qk_names, *norms.names.values()}
    _refuse_unknown(first, used, layer_norm)
    known = {f"{prefix}{embed}", f"{prefix}{final}", head}
    unknown = [name for name in outside if name.rpartition(".")[0] not in known]
    if unknown:
        _refuse(f"outside of its layers it has {_listed(unknown)}, which the decoder has not")
    vocab, hidden = shapes[f"{prefix}{embed}.weight"]
    return Layout(
        names, len(layers), vocab, hidden, first[f"{down}.weight"][1], norms, layer_norm,
        qkv_bias=f"{qkv[0]}.bias" in first, output_bias=f"{out}.bias" in first,
        qk_norm=_qk_norm(first, qk_names, qkv), gated=gated, mlp_bias=f"{down}.bias" in first,
        has_head=head is not None, head_bias=f"{head}.bias" in outside,
    )  # fmt: skip


def _embedding(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    """Tensor prefix, and name of the embedding."""
    for name in EMBED:
        found = [key for key in shapes if re.fullmatch(rf"(.*\.)?{name}\.weight", key)]
        if len(found) == 1 and len(shapes[found[0]]) == 2:
            return found[0].removesuffix(f"{name}.weight"), name
    _refuse(f"it has no token embedding under one of the names {', '.join(EMBED)}")


def _layers_name(shapes: Mapping[str, Shape], prefix: str) -> str:
    for name in LAYERS:
        if any(key.startswith(f"{prefix}{name}.0.") for key in shapes):
            return name
    _refuse(f"it has no layers under one of the names {', '.join(prefix + n for n in LAYERS)}")


def _split(
    shapes: Mapping[str, Shape], prefix: str
) -> tuple[dict[str, Shape], dict[int, dict[str, Shape]]]:
    """Split tensors into those outside layers, and those of each layer by their name within it."""
    pattern = re.compile(rf"{re.escape(prefix + _layers_name(shapes, prefix))}\.(\d+)\.(.+)")
    outside: dict[str, Shape] = {}
    layers: dict[int, dict[str, Shape]] = {}
    for name, shape in shapes.items():
        found = pattern.fullmatch(name)
        if found is None:
            outside[name] = shape
        else:
            layers.setdefault(int(found[1]), {})[found[2]] = shape
    if set(layers) != set(range(len(layers))):
        _refuse(f"its layers are numbered {_listed(map(str, sorted(layers)))}, not from 0 on")
    return outside, layers


def _module(layer: Mapping[str, Shape], names: Iterable[str]) -> str:
    for name in names:
        if any(key.startswith(f"{name}.") for key in layer):
            return name
    _refuse(f"a layer has {_listed(layer)}, and nothing under {', '.join(names)}")


def _found(
    tensors: Mapping[str, Shape], known: Iterable[tuple[str, ...]], what: str, prefix: str = ""
) -> tuple[str, ...]:
    known = list(known)
    for names in known:
        if all(f"{prefix}{name}.weight" in tensors for name in names):
            return names
    expected = "; ".join(" + ".join(names) for names in known)
    _refuse(f"{what} is not found among {_listed(tensors)}: known are {expected}")


def _layer_norms(layer: Mapping[str, Shape]) -> NormNames:
    """The norm scheme of a layer. Raises CheckpointError."""
    found = {name.rpartition(".")[0] for name in layer if name.count(".") == 1}
    for one in NORMS:
        if set(one.names.values()) == found:
            return one
    _refuse(f"a layer has the norms {_listed(sorted(found))}: their places are not known")


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
        is_norm = len(layer[name]) == 1 and "norm" in module
        return module in used and (kind == "weight" or (kind == "bias" and layer_norm >= is_norm))

    unknown = [name for name in layer if not understood(name)]
    if unknown:
        _refuse(f"a layer has {_listed(unknown)}, which the decoder's layers have not")


def _refuse_other_layer(number: int, first: dict[str, Shape], other: dict[str, Shape]) -> NoReturn:
    differing = sorted(
        name for name in first.keys() | other.keys() if first.get(name) != other.get(name)
    )
    _refuse(
        f"layer {number} differs from layer 0 in {_listed(differing)}: not all layers are alike"
    )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _refuse(why: str) -> NoReturn:
    raise CheckpointError(f"the tensors are not those of a decoder that is known here: {why}.")


def shown(layout: Layout) -> dict[str, str]:
    """Inferred parameter names, for display."""
    names = layout.names
    found = {
        "embedding": names.embed_weight,
        "queries, keys, values": " + ".join(names.qkv),
        "attention's output": names.attention_out,
        "MLP": f"{' + '.join(names.gate_up)} -> {names.down}",
        "norms": ", ".join(layout.norms.names.values()),
        "last norm": names.prefix + names.final_norm,
        "output head": names.head if layout.has_head else "the embedding (tied)",
    }
    if layout.qk_norm:
        found["norms of queries and keys"] = f"{names.q_norm}, {names.k_norm} ({layout.qk_norm})"
    biases = [
        field.name.replace("_", " ") for field in fields(layout)
        if field.name.endswith("_bias") and getattr(layout, field.name)
    ]  # fmt: skip
    return found | ({"biases": ", ".join(biases)} if biases else {})
