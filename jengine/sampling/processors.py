"""Runs custom logits processors inside the step.

In: float32 logits, the tokens of each slot's row, and sets of functions. Out: logits, changed in
the slots whose rows use a set. Must not know who gave the functions.

A step whose rows use a set runs a program of its own, compiled at first use while its requests
wait. Functions are traced over every slot and applied only to their rows. They see raw logits and
the row's last 1,024 tokens, and run before token masks, so a grammar holds whatever they do.
Requests' functions cannot leave the process; an engine's may be given by import name, for every
process to import.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.errors import RequestError
from jengine.sampling.callbacks import guarded
from jengine.sampling.inputs import SamplingInput
from jengine.sampling.processor_sets import Processor, ProcessorSet
from jengine.sampling.row_state import RowState

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32


def processed_logits(
    logits: Float32[Array, "slots vocab"],
    state: RowState,
    inputs: SamplingInput,
    sets: Sequence[ProcessorSet],
) -> Float32[Array, "slots vocab"]:
    """Apply each slot's set of processors; other slots are returned bit for bit."""
    with jax.named_scope("logits_processors"):
        ids = latest_tokens(state, inputs)
        for one in sets:
            changed = logits
            for function in one.functions:
                call = guarded(partial(call_processor, function), one.raised.note)
                changed = jax.vmap(call)(ids, changed)
            mine = (inputs.processors == one.number)[:, None]
            logits = jnp.where(mine, changed, logits)
        return logits


def latest_tokens(state: RowState, inputs: SamplingInput) -> Int32[Array, "slots length"]:
    """Tokens before each slot's position, newest last, padded with -1 at the front."""
    length = state.history.shape[1]
    history = state.history.at[inputs.adjusted - 1].get(mode="clip")  # [S, L]
    positions = inputs.positions[:, None] - length + jnp.arange(length)[None, :]
    tokens = jnp.take_along_axis(history, positions % length, axis=1)
    return jnp.where(positions >= 0, tokens, -1)


def call_processor(function: Processor, ids: Array, logits: Array) -> Array:
    """Call a processor for one row; returns float32 logits."""
    result = function(ids, logits) if takes_ids(function) else function(logits)
    return jnp.asarray(result, jnp.float32)


def takes_ids(function: Processor) -> bool:
    """Whether the processor is f(ids, logits) rather than f(logits)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return sum(one.kind in kinds and one.default is one.empty for one in found) == 2


def check_processor(function: Any, vocab_size: int, history: int) -> None:
    """Raise RequestError unless the function can be traced and returns logits of the input's shape.

    Checked at submission: a failure while the step is traced would stop the engine.
    """
    name = getattr(function, "__qualname__", repr(function))
    ids = jax.ShapeDtypeStruct((history,), jnp.int32)
    logits = jax.ShapeDtypeStruct((vocab_size,), jnp.float32)
    try:
        made = jax.eval_shape(lambda i, x: call_processor(function, i, x), ids, logits)
    except Exception as error:
        raise RequestError(
            f"logits_processors: {name} fails in JAX: {type(error).__name__}: {error}. Expected a "
            "pure function f(logits) or f(ids, logits) of the arrays of one row, without Python "
            "branches on their values."
        ) from error
    if made.shape != logits.shape:
        raise RequestError(
            f"logits_processors: {name} returns an array of shape {made.shape}; expected that of "
            f"the logits, {logits.shape}."
        )
