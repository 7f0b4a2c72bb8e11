"""Unquantized weights for the CPU kernels: packed once, or read in place from the declared array.

Both forms give bit-equal results. Norm, bias, activation and residual are fused with the matmul.

On a CPU, matmuls and attention bypass XLA, which repacks every weight at every matmul and gathers
every page. `pallas_kernels/cpu` is C++ behind `jax.ffi`. It runs on XLA's threads and is compiled
at first use for this processor; without a compiler XLA does the work. `Linear` passes its scheme
the preceding norm, the following activation and residual, and which rows are padding, for one fused
call. Weights are packed as they are loaded, and unpacked for `parameters()` and `save`;
`update_params` packs into the same memory, and `pack_weights=False` multiplies from the given
arrays. On a mesh each device packs its shard; where inputs are sharded, partial sums are
all-reduced before bias and residual (`quantization/cpu_shards.py`). A matmul sums over k in one
order, and attention takes keys in chunks at absolute positions, so results are batch-invariant.
Sampling draws with XLA's noise, bit for bit. Work that takes no longer than waking a thread stays
on the calling one. Programs call kernels by names that include a digest of their source, so a
program from the compile cache never runs other kernels than it was compiled for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.mlp import gated
from jengine.layers.norm import RowNorm
from jengine.quantization.scheme import (
    Around,
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
)
from jengine.quantization.unquantized import UNQUANTIZED
from pallas_kernels.cpu import matmul as kernels
from pallas_kernels.cpu.logits import softmax_parts


@dataclass(frozen=True)
class CpuWeights(WeightScheme):
    """`packed` weights take extra memory; their matmuls take half the time of in-place ones."""

    packed: bool

    @property
    def takes_declared(self) -> bool:
        return not self.packed

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return UNQUANTIZED.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Packed panels, one matrix per group."""
        if not self.packed:
            return self.declared(weight, dtype, Initializer())
        shape = (*groups_of(weight), *kernels.packed_shape(*weight.matrix, dtype, weight.gated))
        return {"weight": TensorSpec(shape, (None,) * len(shape), dtype, Initializer())}

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Pack, if this scheme packs."""
        if not self.packed:
            return tensors
        storage = storage_of(weight)
        matrix = weight.matrix if storage == "inputs_first" else weight.matrix[::-1]
        array = tensors["weight"].reshape(*groups_of(weight), *matrix)
        return {"weight": kernels.pack(array, gated=weight.gated, storage=storage)}

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Unpack; packing only reorders."""
        if not self.packed:
            return tensors
        inputs, outputs = weight.matrix
        array = kernels.unpack(tensors["weight"], inputs, outputs, gated=weight.gated)
        if weight.outputs_first:
            array = array.swapaxes(-1, -2)
        return {"weight": array.reshape(weight.shape)}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """An unfused matmul."""
        if weight.gated:  # packed for the fused gate, but gate and up are wanted apart
            return UNQUANTIZED.multiply(weight, x, self.restore(weight, tensors))
        return self.apply(weight, x, tensors, Around())

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Rows of a table; when packed, they are columns of panels."""
        if not self.packed:
            return UNQUANTIZED.lookup(weight, indices, tensors)
        return kernels.columns(tensors["weight"], weight.matrix[0], indices)

    def normalize(self, norm: RowNorm, x: Array) -> Array:
        """Norm in a kernel: XLA's row sums depend on the number of rows."""
        if norm.weight.ndim > 1:
            return norm(x)
        rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        return kernels.normalize(rows, kernel_norm(norm)).reshape(x.shape)

    def softmax(self, x: Array) -> Array:
        """Softmax in a kernel: XLA's row sums depend on the number of rows."""
        highest, total = softmax_parts(x)
        return jnp.exp(x - highest[:, None]) / total[:, None]

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """One fused call, unless the kernels lack the activation."""
        if around.activation not in kernels.ACTIVATIONS:
            return super().apply(weight, x, tensors, around)
        return fused(weight, x, tensors["weight"], around, storage=self._storage(weight))

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """Grouped matmul; empty groups and padding cost nothing."""
        storage = self._storage(weight)
        return grouped(weight, x, tensors["weight"], sizes, activation, storage=storage)

    def _storage(self, weight: WeightShape) -> str:
        return "packed" if self.packed else storage_of(weight)


def fused(
    weight: WeightShape,
    x: Array,
    array: Array,
    around: Around,
    *,
    storage: str = "packed",
    scales: kernels.Scales | None = None,
) -> Array:
    """`WeightScheme.apply` as one kernel call on this array."""
    outputs = weight.outputs[1:] if weight.gated else weight.outputs
    residual = around.residual
    rows = x.reshape(-1, x.shape[-1])
    made = kernels.matmul(
        rows if rows.dtype == jnp.bfloat16 else rows.astype(jnp.float32),
        array,
        weight.matrix[1],
        storage=storage,
        gate="halves" if weight.gated else None,
        activation=around.activation,
        norm=None if around.norm is None else kernel_norm(around.norm),
        bias=None if around.bias is None else around.bias.reshape(-1),
        addend=None if around.addend is None else around.addend.reshape(rows.shape[0], -1),
        residual=None if residual is None else residual.reshape(rows.shape[0], -1),
        positions=None if around.positions is None else around.positions.reshape(-1),
        scales=scales,
    )
    return made.reshape(*x.shape[:-1], *outputs)


def grouped(
    weight: WeightShape,
    x: Array,
    array: Array,
    sizes: Array,
    activation: str | None,
    *,
    storage: str = "packed",
    scales: kernels.Scales | None = None,
) -> Array:
    """`WeightScheme.multiply_groups` as one kernel call, unless the activation is unsupported."""
    if activation not in kernels.ACTIVATIONS:
        made = grouped(weight, x, array, sizes, None, storage=storage, scales=scales)
        return gated(made, str(activation), axis=-1)
    made = kernels.matmul(
        x if x.dtype == jnp.bfloat16 else x.astype(jnp.float32),
        array,
        weight.matrix[1],
        storage=storage,
        gate=None if activation is None else "pairs",
        activation=activation,
        sizes=sizes,
        scales=scales,
    )
    return made if activation is not None else made.reshape(-1, *weight.outputs)


def storage_of(weight: WeightShape) -> str:
    return "outputs_first" if weight.outputs_first else "inputs_first"


def groups_of(weight: WeightShape) -> tuple[int, ...]:
    """Leading group dimension, if the weight has groups."""
    return () if weight.groups is None else (weight.groups,)


def kernel_norm(norm: RowNorm) -> kernels.FusedNorm:
    """Convert a norm to the kernels' description."""
    kind = "rms" if norm.bias is None else "layer"
    return kernels.FusedNorm(kind, norm.weight, norm.bias, norm.eps, norm.offset)


PACKED, IN_PLACE = CpuWeights(packed=True), CpuWeights(packed=False)
