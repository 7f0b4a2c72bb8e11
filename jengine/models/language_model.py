"""What the engine needs of a model's body, whatever is inside."""

from __future__ import annotations

from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.models.context import StepContext, whole_sequences


class LanguageModel(nnx.Module):
    """Tokens to hidden states to logits. Subclasses set `config` and define the two steps."""

    config: ModelConfig

    def __call__(self, tokens: Array, context: StepContext) -> Array:
        """Hidden states after the final norm, [..., hidden]."""
        raise NotImplementedError

    def logits(self, hidden: Array) -> Array:
        """Float32 logits over the vocabulary, [..., vocab]."""
        raise NotImplementedError

    def score(self, tokens: Array) -> Array:
        """Logits of whole sequences [B, T] -> [B, T, vocab], without a cache."""
        return self.logits(self(tokens, whole_sequences(tokens.shape)))
