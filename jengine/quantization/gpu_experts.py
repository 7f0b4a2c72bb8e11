"""MoE layers on NVIDIA GPUs: Triton kernels on each device's part of every expert (tensor
parallel).

XLA's grouped matmul multiplies every row by every expert, so `pallas_kernels/grouped_matmul` does
the work. Tokens are sorted by expert, and a map gives each tile its expert. The first matmul
gathers its tokens, with gate and up in one program; the second scatters weighted outputs back in
token order. One all-reduce adds up tokens, not rows. Whether matrices are plain or codes is up to
the scheme.

With `enable_expert_parallel` each device has whole experts (`quantization/whole_experts.py`): wider
matrices, of which a decode step reads only the picked ones, and the same all-reduce. With
`all2all_backend="all_to_all"` devices dispatch their share of the tokens by `ragged_all_to_all`
(padded on CPUs, where XLA lacks it) and combine the results; small batches exchange sums
(`quantization/expert_exchange.py`). With `enable_eplb` experts are in slots, which may outnumber
them, and an array says which expert is in each (`quantization/placed_experts.py`): moving an expert
is a gather between two steps, without compiling. `executor/balanced_experts.py` counts the experts
picked and requests new placements. With `enable_return_routed_experts` steps return the experts of
every token, those of prompts included: records of cached tokens are kept by block content
(`kvcache/token_records.py`), and a prefix hit ends where they are missing.
`WeightScheme.mix_experts` is the interface; its default composes grouped matmuls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from jengine.layers.mlp import gated
from jengine.layers.moe import Picked
from jengine.quantization.expert_adapters import ExpertAdapters
from jengine.quantization.scheme import Stored, Tensors, WeightShape
from pallas_kernels.grouped_matmul import (
    ACTIVATIONS,
    Groups,
    combine_rows,
    multiply_tokens,
    sort_by_group,
)
from pallas_kernels.quantized_matmul import CodedWeight
from sharding.placement import Placement

EVERYWHERE = PartitionSpec()
Specs = Mapping[str, PartitionSpec]
# Expert matrices [experts, inputs, columns], plain or codes.
Matrices = Array | CodedWeight


class ExpertsLayer(NamedTuple):
    """Weights of a layer's experts, and their conversion to kernel matrices."""

    gate_up: Stored
    down: Stored
    specs: tuple[Specs, Specs]  # partition specs of both weights' tensors
    matrices: Callable[[WeightShape, Tensors], Matrices]  # converts one device's tensors
    activation: str
    # Fake-quantization of each matmul's inputs, if any. Adapters read the inputs before it.
    rounded: tuple[Callable[[Array], Array], Callable[[Array], Array]] | None = None


def mixed_on_devices(
    layer: ExpertsLayer,
    x: Array,
    picked: Picked,
    live: Array | None,
    placement: Placement,
    *,
    exact: bool,
) -> Array:
    """`WeightScheme.mix_experts` with tensor-parallel experts; partial sums are all-reduced in the
    weights' dtype unless `exact`."""
    gate_up, down = layer.gate_up, layer.down
    count, use = gate_up.shape.groups, {"implementation": "triton"}
    assert count is not None, "the weights of experts have groups"
    weights, experts, slots = picked
    if live is not None:
        experts = jnp.where(live[:, None] < 0, -1, experts)
    weight_spec = placement.spec(down.shape.axes, down.shape.shape)
    summed = weight_spec[1]  # the mesh axes of down's inputs
    given_x = (x, None) if layer.rounded is None else (layer.rounded[0](x), x)

    def own(
        xs: tuple[Array, Array | None],
        weights: Array,
        experts: Array,
        first: Tensors,
        second: Tensors,
        bias: Array | None,
        slots: Array | None,
        adapters: tuple[ExpertAdapters | None, ExpertAdapters | None],
    ) -> Array:
        matrices = layer.matrices(gate_up.shape, first), layer.matrices(down.shape, second)
        x, plain = xs[0].astype(matrices[0].dtype), xs[0] if xs[1] is None else xs[1]
        groups = sort_by_group(experts.reshape(-1), count, **use)
        rows = sorted_rows(experts, slots, groups)
        addend = added(adapters[0], plain[groups.order // experts.shape[1]], rows)
        inside = multiply_gated(x, matrices[0], bias, experts, groups, layer.activation, addend)
        alone = added(adapters[1], inside, rows)
        if layer.rounded is not None:
            inside = layer.rounded[1](inside)
        made = combine_rows(inside, matrices[1], groups, weights, **use)
        if alone is not None:
            by_token = alone[jnp.argsort(groups.order)].reshape(*weights.shape, -1)
            made += jnp.sum(by_token * jnp.broadcast_to(weights[..., None], by_token.shape), axis=1)
        if summed is None:
            return made
        narrow = matrices[1].dtype == jnp.bfloat16 and not exact
        parts = made.astype(jnp.bfloat16) if narrow else made
        return lax.psum(parts, summed).astype(jnp.float32)

    bias_spec = EVERYWHERE
    if gate_up.bias is not None:
        spec = placement.spec(gate_up.shape.axes, gate_up.shape.shape)
        bias_spec = PartitionSpec(None, *spec[2:])
    adapters = gate_up.adapters, down.adapters
    specs = tuple(None if one is None else one.specs(placement) for one in adapters)
    given = (*[EVERYWHERE] * 3, *map(dict, layer.specs), bias_spec, EVERYWHERE, specs)
    run = placement.on_each_device(own, given, EVERYWHERE)
    tensors = dict(gate_up.tensors), dict(down.tensors)
    made = run(given_x, weights, experts, *tensors, gate_up.bias, slots, adapters)
    return made if down.bias is None else made + weighted_biases(down.bias, weights, experts)


class SortedRows(NamedTuple):
    """Adapter slot and expert of each row of a grouped matmul."""

    slots: Array
    experts: Array


def sorted_rows(experts: Array, slots: Array | None, groups: Groups) -> SortedRows | None:
    """Rows in `groups` order; None without adapters."""
    if slots is None:
        return None
    return SortedRows(slots[groups.order // experts.shape[1]], experts.reshape(-1)[groups.order])


def added(adapters: ExpertAdapters | None, x: Array, rows: SortedRows | None) -> Array | None:
    """One device's LoRA update of these rows, by kernels; None without adapters."""
    if adapters is None or rows is None:
        return None
    return replace(adapters, implementation="triton").added(x, *rows)


def multiply_gated(
    x: Array, matrices: Matrices, bias: Array | None, experts: Array, groups: Groups,
    activation: str, addend: Array | None = None,
) -> Array:  # fmt: skip
    """Gated grouped matmul in `groups` order; columns are (gate, up) pairs. With a bias, an addend
    or an unsupported activation, XLA does the rest."""
    is_plain = bias is None and addend is None
    fused = activation if is_plain and activation in ACTIVATIONS else None
    made = multiply_tokens(x, matrices, groups, activation=fused, implementation="triton")
    if fused is not None:
        return made
    pairs = made.astype(jnp.float32).reshape(made.shape[0], -1, 2)
    if bias is not None:
        pairs += bias.astype(jnp.float32)[jnp.maximum(experts.reshape(-1), 0)[groups.order]]
    if addend is not None:
        pairs += addend
    return gated(pairs, activation, axis=-1)


def weighted_biases(bias: Array, weights: Array, experts: Array) -> Array:
    """Weighted sum of each token's expert biases [experts, hidden]; none for expert -1."""
    total = jnp.zeros((experts.shape[0], bias.shape[1]))
    for choice in range(experts.shape[1]):
        expert = experts[:, choice]
        addend = bias.astype(jnp.float32)[jnp.maximum(expert, 0)]
        weight = jnp.where(expert < 0, 0.0, weights[:, choice])
        total += jnp.broadcast_to(weight[:, None], addend.shape) * addend
    return total
