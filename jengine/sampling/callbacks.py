"""Functions of requests whose Python callbacks may raise: the step must not fail of that.

A callback that raises makes XLA fail the step that all requests share, with the KV cache that it
was given. So each is called in a guard: `note` is told of the error, and zeros stand for what it
would have returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

Note = Callable[[BaseException], None]
# Primitives with a parameter `callback`, which takes and returns flat arrays, and one without.
WITH_CALLBACKS = ("debug_callback", "pure_callback", "io_callback")
PRINT = "debug_print"


def guarded(function: Callable[..., Array], note: Note) -> Callable[..., Array]:
    """The function of arrays, with its callbacks in a guard. One without callbacks is traced as it
    is."""

    def call(*given: Array) -> Array:
        closed = jax.make_jaxpr(function)(*given)
        if not has_callbacks(closed):
            return function(*given)
        (result,) = jaxpr_as_fun(with_guards(closed, note))(*given)
        return result

    return call


def has_callbacks(part: Any) -> bool:
    """Whether a jaxpr, or a parameter of an equation that holds some, calls back."""
    if isinstance(part, (ClosedJaxpr, Jaxpr)):
        return any(has_callbacks(equation) for equation in part.eqns)
    if isinstance(part, JaxprEqn):
        is_callback = part.primitive.name in (*WITH_CALLBACKS, PRINT)
        return is_callback or any(map(has_callbacks, part.params.values()))
    return isinstance(part, (tuple, list)) and any(map(has_callbacks, part))


def with_guards(part: Any, note: Note) -> Any:
    """The same part of a program, with a guard around each callback in it."""
    if not has_callbacks(part):
        return part
    if isinstance(part, JaxprEqn) and part.primitive.name == PRINT:
        part = as_callback(part)
    if isinstance(part, JaxprEqn):
        params = {name: with_guards(value, note) for name, value in part.params.items()}
        if part.primitive.name in WITH_CALLBACKS:
            params["callback"] = guard(part, note)
        return part.replace(params=params)
    if isinstance(part, (tuple, list)):
        return type(part)(with_guards(one, note) for one in part)
    if isinstance(part, Jaxpr):  # from JAX 0.12 on the only kind
        return part.replace(eqns=[with_guards(equation, note) for equation in part.eqns])
    return part.replace(jaxpr=with_guards(part.jaxpr, note))


def as_callback(equation: JaxprEqn) -> JaxprEqn:
    """A jax.debug.print as a jax.debug.callback: its format may not fit the values."""
    params, shapes = equation.params, [one.aval for one in equation.invars]
    show = partial(equation.primitive.impl, **params)
    how = {name: params[name] for name in ("ordered", "partitioned")}
    (made,) = jax.make_jaxpr(lambda *given: jax.debug.callback(show, *given, **how))(*shapes).eqns
    return equation.replace(primitive=made.primitive, params=made.params, effects=made.effects)


def guard(equation: JaxprEqn, note: Note) -> Callable[..., Sequence[Any]]:
    """The equation's callback, which does not raise."""
    callback = equation.params["callback"]
    shapes = [one.aval.shape for one in equation.invars]  # pyrefly: ignore[missing-attribute]
    results = equation.params.get("result_avals", ())

    def call(*given: Any) -> Sequence[Any]:
        try:
            return callback(*given)
        except Exception as error:  # noqa: BLE001 - its requests get it
            note(error)
            # Where vmap has added axes, results have them too.
            added = [
                np.shape(one)[: np.ndim(one) - len(shape)]
                for one, shape in zip(given, shapes, strict=True)
            ]
            batch = np.broadcast_shapes(*added)
            return [np.zeros((*batch, *one.shape), one.dtype) for one in results]

    return call
