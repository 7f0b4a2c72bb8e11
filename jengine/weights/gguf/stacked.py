"""Tensors that GGUF lays out differently: experts, latent attention's heads, gated delta nets.

In: a layer's tensors by GGUF name. Out: a checkpoint's tensors. Must not know metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from jengine.config import DeltaConfig, ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.weights.gguf.header import PackedTensor
from jengine.weights.gguf.tensor import GgufTensor, expert_of, plain_tensor
from jengine.weights.gguf.value_heads import delta_of

Layer = Mapping[str, PackedTensor]
GATE, UP, DOWN = (f"ffn_{name}_exps" for name in ("gate", "up", "down"))
KEYS, VALUES = "attn_k_b.weight", "attn_v_b.weight"
SHARED = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight")
DENSE = ("ffn_gate.weight", "ffn_up.weight")
DELTA = ("attn_qkv.weight", "attn_gate.weight")
# Tensor names that are translated together, not one by one.
STACKED = {f"{name}.{kind}" for name in (GATE, UP, DOWN) for kind in ("weight", "bias")}
STACKED |= {KEYS, VALUES}


def stacked_names(config: ModelConfig) -> set[str]:
    """Layer tensors that do not map one to one."""
    names = registry.tensor_names(config)
    found = set(STACKED)
    if len(names.shared_gate_up) == 1:
        found |= {*SHARED}
        if names.gate_up == names.shared_gate_up:  # Granite MoE's only MLP is the shared expert
            found |= {*DENSE}
    return found | {*DELTA} if delta_of(config, split=False) is not None else found


def stacked_tensors(config: ModelConfig, layer: str, found: Layer) -> Iterator[GgufTensor]:
    """Translate one layer's tensors that do not map one to one; `layer` is the name prefix."""
    if KEYS in found or VALUES in found:
        yield _latent(layer, *_all(found, KEYS, VALUES))
    names = registry.tensor_names(config)
    delta = delta_of(config, split=False)
    if delta is not None and not found.keys().isdisjoint(DELTA):
        module = f"{layer}{names.recurrent}"
        yield _delta(f"{module}.in_proj_qkvz.weight", delta, *_all(found, *DELTA))
    for pair in (SHARED, DENSE):
        if not found.keys().isdisjoint(pair):
            gate, up = _all(found, *pair)
            shape = (gate.shape[0] + up.shape[0], *up.shape[1:])
            name = f"{layer}{names.shared_gate_up[0]}.weight"
            yield plain_tensor(name, (gate, up), shape, lambda *both: np.concatenate(both))
    for kind in ("weight", "bias"):
        if not any(f"{name}.{kind}" in found for name in (GATE, UP, DOWN)):
            continue
        gate, up, down = _all(found, *(f"{name}.{kind}" for name in (GATE, UP, DOWN)))
        if names.expert_layout == "apart":
            for theirs, packed in zip(
                (*names.expert_gate_up, names.expert_down), (gate, up, down), strict=True
            ):
                yield from _apart(f"{layer}{names.experts}", f"{theirs}.{kind}", packed)
            continue
        ending = "_bias" if kind == "bias" else ""
        yield _joined(config, f"{layer}{names.expert_gate_up[0]}{ending}", gate, up)
        yield _whole(config, f"{layer}{names.expert_down}{ending}", down)


def _all(found: Layer, *names: str) -> list[PackedTensor]:
    for name in names:
        if name not in found:
            other = next(one for one in names if one in found)
            raise CheckpointError(
                f"{found[other].file}: has {found[other].name!r}, and no {name!r} beside it."
            )
    return [found[name] for name in names]


def _apart(module: str, ending: str, packed: PackedTensor) -> Iterator[GgufTensor]:
    for number in range(packed.shape[0] if packed.shape else 0):
        yield plain_tensor(f"{module}.{number}.{ending}", (expert_of(packed, number),))


def _joined(config: ModelConfig, name: str, gate: PackedTensor, up: PackedTensor) -> GgufTensor:
    """Fuse gate and up of all experts, in the family's layout."""
    layout = registry.tensor_names(config).expert_layout
    if gate.shape != up.shape:
        raise CheckpointError(f"{gate.file}: {gate.name!r} and {up.name!r} differ in shape.")
    experts, inner, *inputs = gate.shape
    in_pairs = layout == "inputs_first_pairs"
    turned = layout != "outputs_first" and bool(inputs)

    def both(gates: np.ndarray, rest: np.ndarray) -> np.ndarray:
        if in_pairs:
            joined = np.stack([gates, rest], 2).reshape(experts, 2 * inner, *inputs)
        else:
            joined = np.concatenate([gates, rest], 1)
        return joined.swapaxes(1, 2) if turned else joined

    shape = (experts, *inputs, 2 * inner) if turned else (experts, 2 * inner, *inputs)
    return plain_tensor(name, (gate, up), shape, both)


def _whole(config: ModelConfig, name: str, packed: PackedTensor) -> GgufTensor:
    if registry.tensor_names(config).expert_layout == "outputs_first" or len(packed.shape) != 3:
        return plain_tensor(name, (packed,))
    experts, outputs, inputs = packed.shape
    return plain_tensor(
        name, (packed,), (experts, inputs, outputs), lambda array: array.swapaxes(1, 2)
    )


def _latent(layer: str, keys: PackedTensor, values: PackedTensor) -> GgufTensor:
    """Fuse MLA's k_b [heads, rank, nope] and v_b [heads, values, rank] into kv_b_proj."""
    shapes = keys.shape, values.shape
    if any(len(shape) != 3 for shape in shapes) or (keys.shape[0], keys.shape[1]) != (
        values.shape[0], values.shape[2],
    ):  # fmt: skip
        raise CheckpointError(
            f"{keys.file}: {keys.name!r} and {values.name!r} do not fit: {shapes}."
        )
    heads, rank, nope = keys.shape
    shape = heads * (nope + values.shape[1]), rank
    return plain_tensor(
        f"{layer}self_attn.kv_b_proj.weight", (keys, values), shape,
        lambda one, other: np.concatenate([one.swapaxes(1, 2), other], 1),
    )  # fmt: skip


def _delta(name: str, delta: DeltaConfig, qkv: PackedTensor, gate: PackedTensor) -> GgufTensor:
    """Fuse q, k, v and z, each stored for all heads, into in_proj_qkvz, ordered by key head."""
    heads, values = delta.key_heads, delta.share * delta.value_dim
    widths = (delta.key_dim, delta.key_dim, values)
    rows = heads * sum(widths), heads * values
    shapes = qkv.shape, gate.shape
    if any(len(shape) != 2 for shape in shapes) or (qkv.shape[0], gate.shape[0]) != rows:
        raise CheckpointError(
            f"{qkv.file}: {qkv.name!r} and {gate.name!r} have shapes {shapes}, expected {rows}"
            " rows."
        )
    ends = np.cumsum([heads * width for width in widths])[:-1]

    def by_head(*both: np.ndarray) -> np.ndarray:
        parts = [*np.split(both[0], ends), both[1]]
        return np.concatenate([part.reshape(heads, -1, part.shape[-1]) for part in parts], 1)

    return plain_tensor(name, (qkv, gate), (sum(rows), qkv.shape[1]), by_head)
