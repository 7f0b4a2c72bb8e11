"""The interface of every model: tokens to hidden states, hidden states to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.models.context import StepContext, whole_sequences

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

    from jengine.models.pooler import Pooler


class LanguageModel(nnx.Module):
    """A language model. Subclasses set `config` and implement `__call__` and `logits`."""

    config: ModelConfig
    pooler: Pooler  # in pooling models, instead of an output head

    def __call__(
        self, tokens: Int[Array, "*tokens"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        """Hidden states after the final norm."""
        raise NotImplementedError

    def logits(self, hidden: Float[Array, "*tokens hidden"]) -> Float32[Array, "*tokens vocab"]:
        raise NotImplementedError

    def live_logits(
        self, hidden: Float[Array, "rows hidden"], live: Int[Array, " rows"]
    ) -> Float32[Array, "rows vocab"]:
        """`logits`; rows with `live` -1, which are never used, may be skipped."""
        return self.logits(hidden)

    def score(self, tokens: Int[Array, "batch length"]) -> Float32[Array, "batch length vocab"]:
        """Logits of whole sequences, without a cache."""
        return self.logits(self(tokens, whole_sequences(tokens.shape)))
