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
    eos_token_ids: tuple[int, ...]  # ends an answer without a stop reason
    stop_token_ids: tuple[int, ...] = ()  # the model's other ending ids, which are stop reasons
    embeds_width: int | None = None  # of prompts as embeddings; None: there are none
    token_types: int = 0  # kinds of tokens that a prompt may have; 0: one
    answer_room: int = 1  # tokens that the context must have left for an answer
    lower_case: bool = False  # whether texts are lower-cased before they are tokenized
    most_embeds_bytes: int | None = None  # where a request must travel to another process

    @property
    def most_logprobs(self) -> int:
        """Largest top-k log-probabilities that a request may ask for."""
        return self.vocab_size if self.max_logprobs < 0 else min(self.max_logprobs, self.vocab_size)

    def at_most_the_context(self, tokens: int | None) -> int:
        """Clamp to the context length, which None stands for: devices take no 64-bit numbers."""
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
