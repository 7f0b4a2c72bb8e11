"""Hidden states to logits, outside of requests: `LLM.unembed`.

In: hidden states of any number of axes. Out: logits, by the parameters in use. One program per
power of two of rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import ModelConfig
from jengine.errors import RequestError, UnsupportedFeature
from jengine.models.decoder import Decoder
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.step.leaves import Leaves
from jengine.runner.variants.buckets import FEWEST_DECODE_ROWS
from pallas_kernels.shapes import next_power_of_two
from sharding.jax_settings import engine_context

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class Unembedding:
    """The programs from hidden states to logits. Holds no parameters."""

    def __init__(self, model: ModelConfig, compiler: StepCompiler) -> None:
        if model.pooling is not None:
            raise UnsupportedFeature("unembed: a pooling model has no output head.")
        if compiler.stages is not None or compiler.joined is not None:
            raise UnsupportedFeature(
                "unembed with pipeline_parallel_size or replicas that step together is not built "
                "yet. Use tensor_parallel_size, or one device."
            )
        self._programs = {
            norm: jax.jit(partial(logits_of_rows, compiler.rebuild, norm=norm))
            for norm in (False, True)
        }

    @engine_context()
    def __call__(self, loaded: LoadedModel, hidden: Any, *, norm: bool) -> Array:
        """f32 [..., vocab] of hidden states [..., width]."""
        given = jnp.asarray(hidden)
        width = loaded.programs.compiler.width
        floats = jnp.issubdtype(given.dtype, np.floating)
        if given.ndim == 0 or given.shape[-1] != width or not floats:
            raise RequestError(
                f"unembed: hidden states have shape {given.shape} and type {given.dtype}; expected "
                f"floats [..., {width}], such as output.captured['norm']."
            )
        rows = given.reshape(-1, width).astype(jnp.float32)
        count = max(next_power_of_two(max(len(rows), 1)), FEWEST_DECODE_ROWS)
        padded = jnp.pad(rows, ((0, count - len(rows)), (0, 0)))
        padded = jax.device_put(padded, loaded.programs.compiler.everywhere)
        logits = self._programs[norm](loaded.leaves, padded)
        return logits[: len(rows)].reshape(*given.shape[:-1], -1)


def logits_of_rows(
    rebuild: Any, leaves: Leaves, rows: Float[Array, "rows width"], *, norm: bool
) -> Float32[Array, "rows vocab"]:
    """What the output head makes of rows, behind the final norm with `norm`."""
    model = rebuild(leaves)
    if norm and not isinstance(model, Decoder):
        raise UnsupportedFeature(
            f"unembed(norm=True): {type(model).__name__} is not a decoder with one final norm. "
            "Give values that were captured at 'norm', and norm=False."
        )
    return model.logits(model.norm(rows) if norm else rows).astype(jnp.float32)
