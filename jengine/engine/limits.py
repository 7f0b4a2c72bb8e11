"""Limits of a model and its engine that requests are validated against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jengine.errors import RequestError


@dataclass(frozen=True)
class Limits:
    """Bounds for prompts and sampling parameters."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int  # -1: the whole vocabulary
    eos_token_ids: tuple[int, ...]  # end a completion with stop_reason None
    stop_token_ids: tuple[int, ...] = ()  # the model's other ending ids, given as stop_reason
    embeds_width: int | None = None  # width of prompt embeddings; None: not enabled
    token_types: int = 0  # size of the token type vocabulary; 0: no token_type_ids
    answer_room: int = 1  # tokens of the context reserved for the completion
    lower_case: bool = False  # whether texts are lower-cased before they are tokenized
    most_embeds_bytes: int | None = None  # None: unlimited, as the core is in this process

    @property
    def most_logprobs(self) -> int:
        """Largest top-k log-probabilities that a request may ask for."""
        return self.vocab_size if self.max_logprobs < 0 else min(self.max_logprobs, self.vocab_size)

    def at_most_the_context(self, tokens: int | None) -> int:
        """Clamp to the context length, as devices take 32-bit numbers; None means that length."""
        return self.max_model_len if tokens is None else min(tokens, self.max_model_len)

    def in_vocabulary(self, name: str, ids: Iterable[int]) -> list[int]:
        """Return the ids as a list. Raises RequestError if one is outside the vocabulary."""
        ids = list(ids)
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            bad = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise RequestError(
                f"{name} has {bad}; token ids of this model go from 0 to {self.vocab_size - 1}."
            )
        return ids
