"""Contains exceptions of Python callbacks in users' functions (logits processors, taps).

If a callback raises, XLA fails the whole step, shared by all requests and holding the donated KV
cache. So each callback is wrapped: errors go to `note`, and zeros replace its result.
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
    """Wrap the callbacks inside a traced function. One without callbacks is traced unchanged."""

    def call(*given: Array) -> Array:
        closed = jax.make_jaxpr(function)(*given)
        if not has_callbacks(closed):
            return function(*given)
        (result,) = jaxpr_as_fun(with_guards(closed, note))(*given)
        return result

    return call


def has_callbacks(part: Any) -> bool:
    """Whether a jaxpr, or an equation's parameter containing jaxprs, has a callback."""
    if isinstance(part, (ClosedJaxpr, Jaxpr)):
        return any(has_callbacks(equation) for equation in part.eqns)
    if isinstance(part, JaxprEqn):
        is_callback = part.primitive.name in (*WITH_CALLBACKS, PRINT)
        return is_callback or any(map(has_callbacks, part.params.values()))
    return isinstance(part, (tuple, list)) and any(map(has_callbacks, part))


def with_guards(part: Any, note: Note) -> Any:
    """Rewrite a jaxpr (or part) with every callback guarded."""
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
    """Turn a jax.debug.print into a jax.debug.callback, since its format string may not fit the
    values."""
    params, shapes = equation.params, [one.aval for one in equation.invars]
    show = partial(equation.primitive.impl, **params)
    how = {name: params[name] for name in ("ordered", "partitioned")}
    (made,) = jax.make_jaxpr(lambda *given: jax.debug.callback(show, *given, **how))(*shapes).eqns
    return equation.replace(primitive=made.primitive, params=made.params, effects=made.effects)


def guard(equation: JaxprEqn, note: Note) -> Callable[..., Sequence[Any]]:
    """The equation's callback, wrapped so that it never raises."""
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
