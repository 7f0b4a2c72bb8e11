"""Packs documents into rows of tokens for training.

In: a tokenizer, a seed and a step number. Out: the same Batch whenever they are the same, so that
resuming needs no reader's position. Must not know: the model, the loss.
"""

from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from examples.demo_model import corpus

__all__ = ["READ_WEIGHT", "Batch", "batch_at", "encode"]

# How much a token counts that is only read (a user's turn) where a learned one counts 1.
READ_WEIGHT = 0.1


class Batch(NamedTuple):
    """Tokens [rows, length + 1] and the weight of predicting each but the first [rows, length]."""

    tokens: np.ndarray
    weights: np.ndarray


def batch_at(
    tokenizer: Tokenizer,
    seed: int,
    step: int,
    rows: int,
    length: int,
    *,
    held_out: bool = False,
    mix: corpus.Mix | None = None,
) -> Batch:
    """Rows of whole documents, the last of each row cut; every row begins with a new document."""
    tokens = np.zeros((rows, length + 1), np.int32)
    weights = np.zeros((rows, length), np.float32)
    stream = corpus.documents(f"{seed}/{step}", held_out, mix)
    for row in range(rows):
        filled = 0
        while filled <= length:
            ids, counts = encode(tokenizer, next(stream))
            taken = min(len(ids), length + 1 - filled)
            tokens[row, filled : filled + taken] = ids[:taken]
            # The first document's first token is predicted from nothing.
            skip = 1 if filled == 0 else 0
            weights[row, filled + skip - 1 : filled + taken - 1] = counts[skip:taken]
            filled += taken
    return Batch(tokens, weights)


def encode(tokenizer: Tokenizer, source: corpus.Document) -> tuple[list[int], list[float]]:
    """A document's token ids and how much each counts."""
    segments = list(corpus.render(source))
    encoded = tokenizer.encode_batch([segment.text for segment in segments])
    ids: list[int] = []
    counts: list[float] = []
    for segment, part in zip(segments, encoded, strict=True):
        ids += part.ids
        counts += [1.0 if segment.learned else READ_WEIGHT] * len(part.ids)
    return ids, counts
