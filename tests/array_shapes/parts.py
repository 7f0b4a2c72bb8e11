"""Traces parts of models and engines that no step of one CPU runs: shapes alone, no arithmetic."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jengine.layers import moe
from jengine.layers.moe import Picked
from jengine.models.norms import NoNorm
from jengine.quantization import codes, expert_exchange, on_load, placed_experts
from jengine.runner.step.weight_offload import OffloadedLayers
from jengine.sampling import (
    SamplingInput,
    empty_row_state,
    filters,
    masks,
    pack_admission,
    processors,
)
from jengine.sampling import row_state as sampling_state
from jengine.sampling.processor_sets import ProcessorSet
from pallas_kernels import cache_write, grouped_matmul, token_sampling
from tests.array_shapes.steps import SIZES


def trace_what_steps_leave_out() -> None:
    """Trace what is not part of a step on a CPU."""
    vocab, rows = SIZES["vocab_size"], 3
    hidden = np.zeros((rows, 4), np.float32)
    jax.eval_shape(NoNorm().__call__, hidden)
    state = jax.eval_shape(lambda: empty_row_state(rows, vocab, 64))
    admission = pack_admission([5, 6], 2, vocab=vocab, max_len=64)
    jax.eval_shape(lambda *given: sampling_state.admit(*given), state, np.int32(1), admission)
    logits, floats = np.zeros((rows, vocab), np.float32), np.ones(rows, np.float32)
    keys, ints = np.zeros((rows, 2), np.uint32), np.zeros(rows, np.int32)
    jax.eval_shape(
        lambda *given: token_sampling.sample_tokens(*given, implementation="xla"),
        *(logits, keys, floats, ints, floats, floats),
    )
    # Tables hold these two: a sampler calls the functions that they held when they were made.
    jax.eval_shape(filters.cut_logits, logits, ints, floats, floats)
    jax.eval_shape(lambda x: token_sampling.best_tokens(x, implementation="xla"), logits)
    cache, new = np.zeros((2, 2, 5, 4, 20), np.float32), np.zeros((7, 2, 10), np.float32)
    jax.eval_shape(
        lambda *given: cache_write.write_cache(*given, implementation="xla"),
        *(cache, np.int32(1), new, new, np.zeros(7, np.int32)),
    )
    words, places = np.zeros((1, state.mask.shape[2]), np.int32), np.zeros(1, np.int32)
    jax.eval_shape(masks.with_masks, state.mask, places, places, words)
    slots = SamplingInput(**dict.fromkeys(SamplingInput._fields, ints))
    used = [ProcessorSet(1, (lambda ids, row: row,))]
    jax.eval_shape(lambda x, kept: processors.processed_logits(x, kept, slots, used), logits, state)
    jax.eval_shape(mixed_groups, new[0], np.zeros((2, 10, 6)), np.zeros((2, 3, 5)), new[0, :, :4])


def mixed_groups(x: Array, first: Array, second: Array, scales: Array) -> Array:
    groups = grouped_matmul.sort_by_group(jnp.zeros(scales.size, jnp.int32), 2)
    inside = grouped_matmul.multiply_tokens(x, first, groups, activation="silu")
    return grouped_matmul.combine_rows(inside, second, groups, scales)


def trace_codes() -> None:
    """Trace packing and rounding of weights, which happens when they are loaded."""
    halves, numbers = np.zeros((2, 6, 3), np.uint8), np.ones((6, 3), np.float32)
    jax.eval_shape(lambda x: codes.fp4_values(codes.unpaired(codes.paired(x, 1), 1)), halves)
    for kind in ("int8", "fp8"):
        jax.eval_shape(lambda x, kind=kind: codes.rounded(x, kind), numbers)
        jax.eval_shape(lambda x, kind=kind: codes.scale_of(x, kind, 0), numbers)
    jax.eval_shape(lambda x: on_load.least_error_steps(x, 0, jnp.float16), numbers)


def trace_exchanges() -> None:
    """Trace how tokens reach their experts on four devices, two in each of two replicas, of which
    none has to exist."""
    mesh = AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    tokens, experts = 4 * expert_exchange.FEWEST_TOKENS + 6, 2
    everywhere = expert_exchange.Spread((), ("dp", "tp"), 4, experts, is_cpu=True)
    apart = expert_exchange.Spread(("dp",), ("tp",), 4, experts, is_cpu=True)
    x = jax.ShapeDtypeStruct((tokens, 14), jnp.bfloat16)
    picked = Picked(np.ones((tokens, 3), np.float32), np.zeros((tokens, 3), np.int32))
    for spread, spec in ((everywhere, PartitionSpec()), (apart, PartitionSpec("dp"))):
        for exchange in (expert_exchange.exchange_sums, expert_exchange.exchange_tokens):
            run = jax.shard_map(
                partial(exchange, mixed, spread=spread), mesh=mesh, in_specs=(spec,) * 3,
                out_specs=spec, check_vma=False,
            )  # fmt: skip
            jax.eval_shape(run, x, picked, np.zeros(tokens, np.int32))


def mixed(x: Array, picked: Picked, live: Array | None) -> Array:
    """Experts that change nothing."""
    return x * jnp.sum(picked.weights, axis=1, keepdims=True)


def trace_arrivals() -> None:
    """Trace layers whose parameters come from the host's memory."""

    def run(x: Array) -> Array:
        layers = [nnx.Linear(14, 14, rngs=nnx.Rngs(0)) for _ in range(3)]
        arrivals = OffloadedLayers(layers, {0, 2})
        for index, own in enumerate(layers):
            layer, x = arrivals.arrived(index, own, x)
            x = layer(x)
        return x

    jax.eval_shape(run, jax.ShapeDtypeStruct((5, 14), jnp.float32))


def trace_slots() -> None:
    """Trace experts that are in several slots, how they change places, and a router of its own."""
    experts, picked = np.arange(6, dtype=np.int32) % 4, np.zeros((7, 3), np.int32)
    arrays = {placed_experts.EXPERTS: experts, "weight": np.zeros((6, 10, 5), np.float32)}
    jax.eval_shape(partial(placed_experts.slots_of, count=4), picked, experts)
    jax.eval_shape(partial(placed_experts.moved, count=4), arrays, experts)
    jax.eval_shape(lambda x: moe.sparse_mixer(x, 3, 0.1), np.zeros((7, 10), np.float32))
