"""The JAX primitive of a compiled kernel; the device it is lowered for decides the code."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend as jex
import jax.numpy as jnp
from cutlass.jax import register_ffi
from cutlass.jax.ffi import get_cutlass_call_ffi_name, get_cutlass_call_ffi_version
from jax import Array
from jax.interpreters import mlir

from pallas_kernels.fa4.kernel import Geometry, compiled
from pallas_kernels.launch.call import lowered_for


class Sequences(NamedTuple):
    """Prefill chunks in one array of queries (variable length)."""

    starts: Array  # i32 [n + 1] index of a chunk's first query; the last is not read
    queries: Array  # i32 [n] 0: no chunk
    keys: Array  # i32 [n] visible to the chunk's last query
    tables: Array  # i32 [n, pages] blocks, counted over layers and planes


def attend(
    q: Array, cache: Array, sequences: Sequences, sinks: Array | None, into: tuple[Array, ...],
    *, head_dim: int, window: int | None, scale: float,
) -> tuple[Array, Array]:  # fmt: skip
    """Return outputs [tokens, heads, dim] and log-sum-exps. Entries of tokens outside `sequences`
    are those of `into`, or arbitrary without it."""
    _, _, _, block_size, width = cache.shape
    geometry = Geometry(
        0, q.shape[1], width // head_dim, head_dim, block_size, window, scale, q.dtype.name,
        sinks is not None,
    )  # fmt: skip
    sink = jnp.zeros(1, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    return tuple(fa4_call.bind(q, cache, *sequences, sink, *into, geometry=geometry))


fa4_call = jex.core.Primitive("fa4_attention")
fa4_call.multiple_results = True
# Inputs before the arrays that are written in place.
GIVEN = 2 + len(Sequences._fields) + 1


@fa4_call.def_abstract_eval
def _shapes(q: Any, *arrays: Any, geometry: Geometry) -> list[Any]:
    return [
        jax.core.ShapedArray(q.shape, q.dtype),
        jax.core.ShapedArray(q.shape[:2], jnp.float32),
    ]


@fa4_call.def_impl
def _eager(*arrays: Any, geometry: Geometry) -> Any:
    return jax.jit(partial(fa4_call.bind, geometry=geometry))(*arrays)


def _lower(context: Any, *operands: Any, geometry: Geometry) -> Any:
    _, capability = lowered_for(context)
    in_place = len(operands) > GIVEN
    kernel = compiled(geometry._replace(capability=capability), in_place=in_place)
    register_ffi()

    def call(*arrays: Array) -> Any:
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in context.avals_out]
        run = jax.ffi.ffi_call(
            get_cutlass_call_ffi_name(True, get_cutlass_call_ffi_version()), shapes,
            input_output_aliases=dict(kernel.spec.input_output_aliases),
        )  # fmt: skip
        return run(*arrays, module=kernel.module, key=kernel.fingerprint)

    return mlir.lower_fun(call, multiple_results=True)(context, *operands)


mlir.register_lowering(fa4_call, _lower, platform="cuda")
