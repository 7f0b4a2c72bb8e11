"""The padded arrays of Tunix's trainers: prompts padded at the left, completions at the right.

In: token ids or padded arrays. Out: arrays and lengths. Must not import Tunix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jengine.errors import RequestError


def check_prompts(rows: Sequence[list[int]], longest: int, pad: int) -> None:
    """Refuse prompts that a trainer would see cut, or with a masked beginning."""
    for number, row in enumerate(rows):
        if len(row) > longest:
            raise RequestError(
                f"prompt {number} has {len(row)} tokens, max_prompt_length is {longest}. Raise it,"
                " or leave such prompts out of the data."
            )
        if row[:1] == [pad]:
            raise RequestError(
                f"prompt {number} begins with token {pad}, which is also the padding, so the"
                " trainer would not see it. Give the tokenizer a pad_token of its own."
            )


def left_padded(rows: Sequence[list[int]], width: int, pad: int) -> np.ndarray:
    """i32 [rows, width], each row at the right end."""
    table = np.full((len(rows), width), pad, np.int32)
    for filled, row in zip(table, rows, strict=True):
        filled[width - len(row) :] = row
    return table


def first_real(row: np.ndarray, pad: int) -> int:
    """The index at which a left-padded prompt begins."""
    real = np.flatnonzero(row != pad)
    if not len(real):
        raise RequestError(f"a prompt holds only padding ({pad}); it needs one token or more.")
    return int(real[0])


def completion_lengths(completions: np.ndarray, mask: Any, pad: int) -> list[int]:
    """The number of tokens of each right-padded completion to score."""
    if mask is not None:
        counted = np.asarray(mask).astype(bool)
        return [int(np.max(np.flatnonzero(row), initial=-1)) + 1 for row in counted]
    ends = [int(np.max(np.flatnonzero(row != pad), initial=-1)) + 2 for row in completions]
    return [min(end, completions.shape[1]) for end in ends]
