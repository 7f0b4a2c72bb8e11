"""Converts parameters between declared form (checkpoints) and prepared form (steps).

In: a model's declarations and placements. Out: arrays in the other form. Weights whose scheme takes
declared arrays pass through unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from flax import nnx

from jengine.models.linear import Embedding, Linear, Weighted
from jengine.models.norms import LayerNorm, RmsNorm
from jengine.models.parameter import named_parameters
from jengine.quantization.backends import is_unfit, step_scheme, weight_scheme
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized_table import QuantizedTable
from jengine.quantization.scheme import Specs, Tensors, WeightScheme, WeightShape
from jengine.weights.abstract import NamedArray
from jengine.weights.stage_places import StagePlaces
from sharding.placement import HOST
from sharding.shared import shared

Arrays = Mapping[str, jax.Array]  # by dotted path
Convert = Callable[[WeightShape, Tensors], Tensors]


class PreparedForm:
    """The module in prepared form, and conversions of its arrays from and to declared form."""

    def __init__(
        self, declared: nnx.Module, places: StagePlaces, backend: str | None = None
    ) -> None:
        """`declared` has shapes in place of arrays; `backend` chooses matmul schemes, None:
        XLA's."""
        self._places = places
        self._backend = backend
        self.module = nnx.merge(*nnx.split(declared))
        self.unfit = choose_schemes(self.module, backend, places)
        prepared = weighted(self.module)
        # (declared, prepared) modules of weights whose form changes.
        self._weights = {
            path: (module, prepared[path])
            for path, module in weighted(declared).items()
            if not prepared[path].scheme.takes_declared
        }
        # Keyed by all that a conversion depends on, so that layers with weights of one shape share
        # a program, across engines too.
        self._conversions: dict[Any, Callable[..., Tensors]] = {}

    @property
    def copied(self) -> frozenset[str]:
        """Paths of declared parameters whose prepared arrays are copies."""
        return frozenset(
            f"{path}.{name}"
            for path, (declared, _) in self._weights.items()
            for name in declared.declared_specs()
        )

    @property
    def copies(self) -> frozenset[str]:
        """Paths of the prepared arrays that are copies."""
        return frozenset(
            f"{path}.{name}"
            for path, (_, prepared) in self._weights.items()
            for name in prepared.prepared_specs()
        )

    def prepare(self, values: Iterable[NamedArray], into: Arrays | None = None) -> Arrays:
        """Prepare all parameters.

        A weight is prepared once all its tensors have arrived and the previous one is done, so a
        lazy iterator keeps only a few declared arrays in memory. Copies may reuse the memory of
        earlier ones, `into`, which are deleted.
        """
        found: dict[str, jax.Array] = {}
        waiting: dict[str, dict[str, jax.Array]] = {path: {} for path in self._weights}
        last: Arrays = {}
        for name, value in values:
            path, _, tensor = name.rpartition(".")
            if path not in self._weights or tensor not in self._weights[path][0].declared_specs():
                found[name] = value
                continue
            declared, prepared = self._weights[path]
            waiting[path][tensor] = value
            del value
            if waiting[path].keys() == declared.declared_specs().keys():
                jax.block_until_ready(last)
                tensors, specs = waiting.pop(path), prepared.prepared_specs()
                last = self._convert(path, "prepare", tensors, specs, into or {})
                del tensors
                found.update(last)
        assert not waiting, f"no values for {sorted(waiting)}"
        return found

    def restore(self, values: Arrays, *, rounded: bool = False) -> Arrays:
        """Declared arrays from prepared ones. With `rounded`, weights quantized at load stay
        quantized."""
        found = dict(values)
        for path, (declared, prepared) in self._weights.items():
            how, wanted = "restore", declared.declared_specs()
            if rounded and isinstance(declared.scheme, QuantizedOnLoad):
                if prepared.scheme == declared.scheme and not declared.scheme.format.fine_zeros:
                    continue
                how, wanted = "save", declared.scheme.saved.prepared(declared.shape, declared.dtype)
            tensors = {name: found.pop(f"{path}.{name}") for name in prepared.prepared_specs()}
            found.update(self._convert(path, how, tensors, wanted))
        return found

    def _convert(
        self, path: str, how: str, tensors: Tensors, wanted: Specs, into: Arrays | None = None
    ) -> dict[str, jax.Array]:
        declared, prepared = self._weights[path]
        where = {
            name: self._places.sharding(f"{path}.{name}", spec.axes, spec.shape)
            for name, spec in wanted.items()
        }
        # Of the weight's pipeline stage only; steps span all stages.
        scheme = weight_scheme(
            declared.scheme, prepared.shape, self._backend, self._places.of(path)
        )
        # XLA cannot donate host memory to results: it makes them on the device first.
        on_host = any(one.memory_kind == HOST for one in where.values())
        old = {name: into[f"{path}.{name}"] for name in wanted} if into and not on_host else {}
        key = how, scheme, prepared.shape, tuple(where.items()), bool(old)
        if key not in self._conversions:
            convert = converter(scheme, declared.scheme, how)
            whole = (conversion, declared.scheme, *key)
            self._conversions[key] = shared(
                whole if are_ours([scheme, declared.scheme]) else None,
                lambda: conversion(convert, prepared.shape, where),
            )
        made = self._conversions[key](tensors, old)
        return {f"{path}.{name}": array for name, array in made.items()}


def converter(scheme: WeightScheme, declared: WeightScheme, how: str) -> Convert:
    """Return the function that converts tensors to the other form, or to a file's."""
    if how != "save":
        return scheme.prepare if how == "prepare" else scheme.restore
    assert isinstance(declared, QuantizedOnLoad), "others are saved as they are declared"
    return lambda shape, given: declared.as_saved(shape, scheme.unpack(shape, given))


def conversion(
    convert: Convert, shape: WeightShape, where: Mapping[str, jax.sharding.Sharding]
) -> Callable[..., Tensors]:
    """Compile a conversion of one weight. Old arrays of the results' shapes may be passed to donate
    their memory."""

    def converted(given: Tensors, old: Tensors) -> Tensors:
        return dict(convert(shape, given))

    def between_hosts(given: Tensors, old: Tensors) -> Tensors:
        return converted(jax.device_put(given, jax.memory.Space.Device), old)

    if any(one.memory_kind == HOST for one in where.values()):
        return jax.jit(between_hosts, out_shardings=dict(where), keep_unused=True)
    return jax.jit(converted, out_shardings=dict(where), donate_argnums=1, keep_unused=True)


def choose_schemes(model: nnx.Module, backend: str | None, places: StagePlaces) -> list[str]:
    """Switch a step's modules to the backend's matmuls and norms where they fit. Returns paths of
    weights whose shards do not fit the CPU kernels."""
    unfit = []
    for steps, module in nnx.iter_modules(model):
        path = ".".join(map(str, steps))
        if isinstance(module, Linear) or (isinstance(module, Embedding) and is_changed(module)):
            place = places.running(path)
            if is_unfit(module.scheme, module.shape, backend, place):
                unfit.append(path)
            module.become_prepared(weight_scheme(module.scheme, module.shape, backend, place))
        elif isinstance(module, RmsNorm | LayerNorm):
            module.scheme = step_scheme(module.scheme, backend, places.running(path))
    return unfit


def is_changed(table: Embedding) -> bool:
    """Whether steps use a repacked copy of a table."""
    return table.is_head or isinstance(table.scheme, QuantizedTable)


def are_ours(given: Iterable[object]) -> bool:
    """Whether all classes are jengine's or flax's. Users' classes may be redefined, as in
    notebooks, so programs traced from them are not shared between engines."""
    return all(type(one).__module__.partition(".")[0] in ("jengine", "flax") for one in given)


def parameter_count(declared: nnx.Module) -> int:
    """Number of parameters, independent of storage: packed codes count unpacked, scales not at
    all."""
    weights = weighted(declared)
    stored = {f"{path}.{name}" for path, one in weights.items() for name in one.declared_specs()}
    others = [one.shape for path, one in named_parameters(declared) if path not in stored]
    return sum(map(math.prod, [*others, *(one.shape.shape for one in weights.values())]))


def weighted(model: nnx.Module) -> dict[str, Weighted]:
    """Modules with a weight, by dotted path."""
    return {
        ".".join(map(str, path)): module
        for path, module in nnx.iter_modules(model)
        if isinstance(module, Weighted)
    }
