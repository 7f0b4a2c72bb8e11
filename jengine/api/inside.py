"""Access to a model's internals: patch grids, and hidden states to logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.api.patch_grid import PatchGrid, checked_grid, last_hidden
from jengine.api.pooling.engine import PoolingEngine
from jengine.api.tapping import changes_of, opened_taps, refuse_divided
from jengine.config import ModelConfig
from jengine.errors import RequestError, UnsupportedFeature
from jengine.models.decoder import Decoder
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.step.leaves import Leaves
from jengine.runner.variants.buckets import FEWEST_DECODE_ROWS
from jengine.sampling_params import SamplingParams
from pallas_kernels.shapes import next_power_of_two
from sharding.jax_settings import engine_context

if TYPE_CHECKING:
    from jaxtyping import Float, Float32


class InsideEngine(PoolingEngine):
    """An engine whose hidden states can be read, changed and decoded."""

    def unembed(self, hidden: Any, *, norm: bool = False) -> jax.Array:
        """Apply the output head to hidden states.

        With activations captured at `layers.N.output` and `norm=True`, this is a logit lens.

        Args:
            hidden: floats [..., width], as captured at "norm".
            norm: whether to apply the final norm first, as for the residual stream.

        Returns:
            float32 [..., vocab].

        Raises:
            RequestError: the shape or the type does not fit.
            UnsupportedFeature: the model has pipeline stages, or no output head, or with `norm` no
                single final norm.
        """
        self.engine.check_leaves()
        return self._unembedding(self.engine.loaded, hidden, norm=norm)

    def patch_grid(
        self, prompt: Any, values: Mapping[str, Any], positions: Sequence[int] | None = None
    ) -> PatchGrid:
        """Patch one prompt at every point and position, one patch at a time, in one batch.

        Every patch is a request, and all run in one compiled program, which other values, positions
        and prompts reuse.

        Args:
            prompt: a text or token ids.
            values: tap point -> float [tokens, width], such as `output.captured` of another prompt;
                the value at a position replaces the one of this prompt.
            positions: tokens of the prompt, from 0; None: all of them.

        Returns:
            A PatchGrid; `llm.unembed(grid.hidden)` are the next token's logits for each patch.

        Raises:
            RequestError: a point or a position does not exist, or the shapes do not fit.
            UnsupportedFeature: the tokens of a step are divided among devices.
        """
        engine = self.engine
        refuse_divided(engine.loaded, ["patch_grid"])
        tokens = self._token_ids(prompt)
        points = [point.name for point in self.tap_points]
        grid = checked_grid(values, positions, len(tokens), points, engine.model.hidden_size)
        changes = changes_of(grid.applied, grid.variants)
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        with engine.loaded.taps.opened(["norm"], changes) as first:
            numbers = [first + variant for variant in range(grid.count)]
            outputs = self._answering.answer([tokens] * grid.count, params, False, taps=numbers)
        return last_hidden(grid, outputs)

    @cached_property
    def _unembedding(self) -> Unembedding:
        return Unembedding(self.engine.model, self.engine.loaded.programs.compiler)

    def _token_ids(self, prompt: Any) -> list[int]:
        return self.engine.session.input_processor.prompts.render(prompt)["prompt_token_ids"]

    def _taps(self, capture: Any, intervene: Any) -> AbstractContextManager[int]:
        if capture is None and intervene is None:
            return nullcontext(0)
        return opened_taps(self.engine.loaded, self.engine.model, capture, intervene)


class Unembedding:
    """Compiled programs from hidden states to logits. Holds no parameters."""

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
        """Logits f32 [..., vocab] of hidden states [..., width]."""
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
    """Apply the output head to rows, after the final norm if `norm`."""
    model = rebuild(leaves)
    if norm and not isinstance(model, Decoder):
        raise UnsupportedFeature(
            f"unembed(norm=True): {type(model).__name__} is not a decoder with one final norm. "
            "Give values that were captured at 'norm', and norm=False."
        )
    return model.logits(model.norm(rows) if norm else rows).astype(jnp.float32)
