"""Log-probabilities of the scripted executor: made up, a function of token and position only.

In: rows, and the tokens just sampled or run. Out: arrays as a step returns them. Must not know
caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jengine.outputs import NO_TOKEN, StepLogprobs
from jengine.plan import Entry
from tests.executor.scripted_rows import MirrorRow


def sampled_scores(
    mirrors: Sequence[MirrorRow], tokens: Sequence[list[int]], vocab_size: int
) -> StepLogprobs | None:
    """Of the tokens just sampled, if any row wants them: [rows, tokens, columns]."""
    most = most_columns((mirror.sampling.logprobs for mirror in mirrors), vocab_size)
    if most is None:
        return None
    widest = max(map(len, tokens))
    found = []
    for mirror, own in zip(mirrors, tokens, strict=True):
        padded = own + [0] * (widest - len(own))
        first, ids = len(mirror.token_ids) - len(own), mirror.sampling.logprob_ids
        found.append(scores(padded, first, most, ids))
    return StepLogprobs(*(np.stack(arrays) for arrays in zip(*found, strict=True)))


def prompt_scores(
    mirrors: Sequence[MirrorRow], chunks: Sequence[Entry], vocab_size: int
) -> StepLogprobs | None:
    """Of the tokens after each of the chunks' tokens, if any row wants them."""
    most = most_columns((mirror.sampling.prompt_logprobs for mirror in mirrors), vocab_size)
    if most is None:
        return None
    found = []
    for mirror, chunk in zip(mirrors, chunks, strict=True):
        first = chunk.start + 1
        tokens = mirror.token_ids[first : first + chunk.length]
        unknown = [0] * (chunk.length - len(tokens))
        found.append(scores(tokens + unknown, first, most))
    return joined(found)


def most_columns(wanted: Iterable[int | None], vocab_size: int) -> int | None:
    """The number of columns beside the chosen token's that is enough for all rows."""
    counts = [count for count in wanted if count is not None]
    return max((vocab_size if count == -1 else count for count in counts), default=None)


def scores(tokens: list[int], first: int, columns: int, chosen: Sequence[int] = ()) -> StepLogprobs:
    """Made-up numbers that depend on token and position only; tokens from position `first`.
    `chosen` ids stand in place of the likeliest."""
    positions = np.arange(first, first + len(tokens))
    ids = np.tile(np.arange(-1, columns, dtype=np.int32), (len(tokens), 1))
    ids[:, 0] = tokens
    ids[:, 1 : 1 + len(chosen)] = chosen
    values = -positions.astype(np.float32)[:, None] - ids.astype(np.float32) / 1024
    return StepLogprobs(values, ids, positions.astype(np.int32) % 7)


def filled(tokens: list[list[int]]) -> np.ndarray:
    """The tokens of each entry, i32[entries, most], with NO_TOKEN where it has fewer."""
    array = np.full((len(tokens), max(map(len, tokens), default=1)), NO_TOKEN, np.int32)
    for row, own in zip(array, tokens, strict=True):
        row[: len(own)] = own
    return array


def joined(parts: list[StepLogprobs], axis: int = 0) -> StepLogprobs | None:
    """Parts one after the other, if there are any."""
    if not parts:
        return None
    return StepLogprobs(*(np.concatenate(arrays, axis) for arrays in zip(*parts, strict=True)))
