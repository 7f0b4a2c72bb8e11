"""A model's parameters as the flat tuple of arrays (leaves) that a step takes, and back.

Leaves have the layout that the step's kernels take (prepared); where that is the declared layout,
nothing is copied. With pipeline stages, a leaf holds one slot's layers of all stages, concatenated
along the first axis: each device's shard is the array of its stage's layer, so that is no copy
either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jengine.errors import UnsupportedFeature
from jengine.models.decoder import Decoder
from jengine.models.linear import Weighted
from jengine.models.parameter import named_variables
from jengine.models.stages import LAYER_PATH
from jengine.runner.step.weight_offload import OffloadedLayers
from jengine.weights.abstract import NamedArray, declaration
from jengine.weights.prepared import PreparedForm, are_ours
from jengine.weights.stage_places import StagePlaces, layer_of
from sharding.axes import STAGES
from sharding.shared import shared

Leaves = tuple[jax.Array, ...]


@dataclass(frozen=True, eq=False)  # compared by identity, as comparing graphs is slow
class Rebuild:
    """Builds the model, or the layers of one stage, from its leaves. Equal models of this process
    share one object (`shared`), if all their classes are jengine's."""

    graph: Any  # nnx.GraphDef
    tree: Any  # of its parameters
    on_host: frozenset[int]  # offloaded layers

    def __call__(self, leaves: Any) -> Any:
        model = nnx.merge(self.graph, jax.tree.unflatten(self.tree, leaves))
        if self.on_host:
            assert isinstance(model, Decoder), "layers arrive in the loop of decoders"
            model.arrived = OffloadedLayers(model.layers, self.on_host).arrived
        return model


class LeafOrder:
    """Leaves of one model: the parameters in each, and their shardings."""

    def __init__(self, model: nnx.Module, places: StagePlaces, backend: str | None = None) -> None:
        self.places = places
        self.backend = backend
        self._layout = places.layout
        declared = declaration(model)
        self._form = PreparedForm(declared, places, backend)
        self._names = tuple(name for name, _ in named_variables(nnx.state(declared)))
        prepared = self._form.module
        self._prepared = dict(named_variables(nnx.state(prepared)))
        stage = first_layers(prepared, self._layout.num_slots) if self._in_stages else prepared
        graph, parameters = nnx.split(stage)
        given = graph, jax.tree.structure(parameters), places.on_host
        modules = [module for _, module in nnx.iter_modules(stage)]
        schemes = [one.scheme for one in modules if isinstance(one, Weighted)]
        key = (Rebuild, *given) if are_ours([*modules, *schemes]) else None
        self.rebuild = shared(key, lambda: Rebuild(*given))
        self.names = tuple(name for name, _ in named_variables(parameters))
        # Whether a leaf is split by stage.
        self.staged = tuple(
            self._in_stages and LAYER_PATH.fullmatch(name) is not None for name in self.names
        )

    @property
    def _in_stages(self) -> bool:
        return self._layout.num_stages > 1

    def layer_bytes(self) -> dict[int, int]:
        """Parameter bytes per layer, on one of the devices that hold it."""
        found: dict[int, int] = {}
        for name, one in zip(self.names, self.shapes(), strict=True):
            layer = layer_of(name)
            if layer is not None:
                size = math.prod(one.sharding.shard_shape(one.shape)) * one.dtype.itemsize
                found[layer] = found.get(layer, 0) + size
        return found

    @property
    def arriving(self) -> int:
        """Maximum number of parameter arrays of an offloaded layer."""
        layers = [layer_of(name) for name in self.names]
        return max((layers.count(layer) for layer in self.places.on_host), default=0)

    @property
    def arriving_bytes(self) -> int:
        """Maximum bytes a device holds of offloaded layers."""
        sizes = self.layer_bytes() if self.places.on_host else {}
        return 2 * max((sizes[layer] for layer in self.places.on_host), default=0)

    def leaves(self, values: Iterable[NamedArray], into: Leaves | None = None) -> Leaves:
        """The leaves of declared parameters that `places` has placed.

        Weights are prepared one at a time, so declared and prepared forms are never all in memory.
        Copies may reuse the memory of the earlier leaves `into`, which are deleted.
        """
        prepared = self._form.prepare(values, None if into is None else self._by_path(into))
        return tuple(
            self._stacked(name, prepared) if staged else prepared[name]
            for name, staged in zip(self.names, self.staged, strict=True)
        )

    def values(self, leaves: Leaves) -> dict[str, jax.Array]:
        """The declared parameters of these leaves, by path."""
        declared = self._form.restore(self._by_path(leaves))
        return {name: declared[name] for name in self._names}

    def stored(self, leaves: Leaves) -> dict[str, jax.Array]:
        """The parameters in checkpoint form: weights quantized at load stay quantized."""
        return dict(self._form.restore(self._by_path(leaves), rounded=True))

    @property
    def copied(self) -> frozenset[str]:
        """Paths of declared parameters whose leaves are copies."""
        return self._form.copied

    @property
    def unfit(self) -> list[str]:
        """Paths of weights whose shards do not fit the backend's matmul kernels."""
        return self._form.unfit

    def copied_bytes(self, leaves: Leaves) -> int:
        """Bytes of leaves that are copies, on this process's devices."""
        copies = self._form.copies
        return sum(
            shard.data.nbytes
            for name, leaf in zip(self.names, leaves, strict=True)
            if name in copies
            for shard in leaf.addressable_shards
        )

    def _by_path(self, leaves: Leaves) -> dict[str, jax.Array]:
        """The prepared parameters in these leaves."""
        found: dict[str, jax.Array] = {}
        for name, staged, leaf in zip(self.names, self.staged, leaves, strict=True):
            found.update(self._unstacked(name, leaf) if staged else {name: leaf})
        return found

    def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The leaves without data, each with its sharding."""
        return tuple(map(self._shape, self.names, self.staged))

    def _shape(self, name: str, staged: bool) -> jax.ShapeDtypeStruct:
        prepared = self._prepared[name]
        shape, axes = prepared.shape, prepared.get_metadata()["axes"]
        sharding = self.places.sharding(name, axes, shape)
        if staged:
            shape, sharding = self._stacked_shape(shape, sharding)
        return jax.ShapeDtypeStruct(shape, prepared.dtype, sharding=sharding)

    def _stacked_shape(
        self, shape: tuple[int, ...], sharding: NamedSharding
    ) -> tuple[tuple[int, ...], NamedSharding]:
        """Shape and sharding of the array that stacks all stages' arrays of this one."""
        first, *others = (*sharding.spec, *([None] * (len(shape) - len(sharding.spec))))
        names = () if first is None else (first,) if isinstance(first, str) else tuple(first)
        spec = PartitionSpec((STAGES, *names), *others)
        stacked = (self._layout.num_stages * shape[0], *shape[1:])
        return stacked, NamedSharding(self.places.whole.mesh, spec)

    def _stacked(self, name: str, values: Mapping[str, jax.Array]) -> jax.Array:
        parts = [self._part(name, stage, values) for stage in range(self._layout.num_stages)]
        like = self._shape(name, True)
        shards = [shard.data for part in parts for shard in part.addressable_shards]
        sharding = like.sharding
        assert isinstance(sharding, NamedSharding)
        return jax.make_array_from_single_device_arrays(
            like.shape, sharding, shards, dtype=like.dtype
        )

    def _part(self, name: str, stage: int, values: Mapping[str, jax.Array]) -> jax.Array:
        """A stage's array for a slot; a skipped slot gets another layer's, or zeros."""
        own = self._layout.path_in(stage, name)
        if own is not None:
            return values[own]
        wanted = self._prepared[name]
        for borrowed in self._names_in(stage, rest=name.split(".", 2)[2]):
            if self._prepared[borrowed].shape == wanted.shape:
                return values[borrowed]
        axes = wanted.get_metadata()["axes"]
        sharding = self.places.whole.stage(stage).sharding(axes, wanted.shape)
        return jax.make_array_from_callback(
            wanted.shape, sharding, lambda part: np.zeros(wanted.shape, wanted.dtype)[part],
            dtype=jnp.dtype(wanted.dtype),
        )  # fmt: skip

    def _unstacked(self, name: str, leaf: jax.Array) -> dict[str, jax.Array]:
        found: dict[str, jax.Array] = {}
        for stage in range(self._layout.num_stages):
            own = self._layout.path_in(stage, name)
            if own is None:
                continue
            prepared = self._prepared[own]
            axes, shape = prepared.get_metadata()["axes"], prepared.shape
            sharding = self.places.sharding(own, axes, shape)
            shards = [s.data for s in leaf.addressable_shards if s.device in sharding.device_set]
            found[own] = jax.make_array_from_single_device_arrays(
                shape, sharding, shards, dtype=leaf.dtype
            )
        return found

    def _names_in(self, stage: int, rest: str) -> list[str]:
        """Paths of a parameter in all of a stage's layers that have it."""
        names = (f"layers.{layer}.{rest}" for layer in self._layout.stages[stage])
        return [name for name in names if name in self._prepared]


def first_layers(model: nnx.Module, count: int) -> nnx.Module:
    """The abstract model cut to its first layers, as every stage is built."""
    # A decoder that overrides through_layers may run modules besides its layers.
    if not isinstance(model, Decoder) or type(model).through_layers is not Decoder.through_layers:
        raise UnsupportedFeature(
            f"pipeline_parallel_size with a model that is a {type(model).__name__}: stages are "
            "built for jengine's own decoder only. Use tensor_parallel_size."
        )
    stage = nnx.merge(*nnx.split(model))
    stage.layers = nnx.List(list(stage.layers)[:count])
    return stage
