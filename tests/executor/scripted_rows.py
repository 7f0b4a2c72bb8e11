"""Texts of the scripted executor: a token is a pure function of the tokens before it, and a mirror
row is what a device would know of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jengine.plan import NewRow, RowSampling

PRIME = 2**61 - 1
FACTOR = 1_000_003


def scripted_tokens(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The first `count` tokens that follow `prompt`, if no mask or stop intervenes."""
    mark = mark_of(prompt)
    tokens = []
    for _ in range(count):
        tokens.append(next_token(mark, vocab_size))
        mark = advance(mark, tokens[-1])
    return tokens


def advance(mark: int, token: int) -> int:
    """The mark of a text that is one token longer: what the cache holds at that token."""
    return (mark * FACTOR + token + 1) % PRIME


def mark_of(tokens: Sequence[int]) -> int:
    """The mark of a whole text."""
    mark = 1
    for token in tokens:
        mark = advance(mark, token)
    return mark


def next_token(mark: int, vocab_size: int) -> int:
    """The token that follows a text."""
    return (mark * 2_654_435_761 % PRIME >> 7) % vocab_size


class MirrorRow:
    """What the device would know of a row."""

    def __init__(self, new: NewRow, num_groups: int) -> None:
        self.token_ids = list(new.token_ids)
        self.prompt_length = new.prompt_length
        self.sampler_row = new.sampler_row
        self.num_given = len(new.token_ids)
        self.sampling: RowSampling = new.sampling
        self.marks: list[int] = []  # of each token from position 0 on
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.computed: int | None = None  # None until its first entry says where it starts
        self.drafts: list[int] = []  # that this step runs after the last token
        self.next_drafts: list[int] = []  # that its last step has made for the one after it
        self.ran = (0, 0)  # positions of the last step's tokens, from and to
        self.was_drafted = False  # it has had drafts, so plans may count more tokens than it has
        # A multi-step decode ended before its turn: the host must not count on its tokens any more.
        self.lost = False
        self.failed = False

    @property
    def has_ended(self) -> bool:
        """Whether it has sampled a token that ends it."""
        sampled = len(self.token_ids) > self.num_given
        return (
            self.lost or self.failed or (sampled and self.token_ids[-1] in self.sampling.stop_ids)
        )

    def mark_up_to(self, end: int) -> None:
        """Know the mark of every position before `end`."""
        mark = self.marks[-1] if self.marks else 1
        for token in self.token_ids[len(self.marks) : end]:
            mark = advance(mark, token)
            self.marks.append(mark)

    def run_marks(self) -> list[int]:
        """The marks of all tokens that ran, and then of the drafts as if they had been sampled."""
        marks = list(self.marks)
        for token in self.drafts:
            marks.append(advance(marks[-1], token))
        return marks


def drafts_by_row(rows: Mapping[int, MirrorRow]) -> np.ndarray:
    """The drafts of rows, i32[rows, drafts], -1 where there is none."""
    most = max((len(mirror.next_drafts) for mirror in rows.values()), default=0)
    found = np.full((1 + max(rows, default=0), most), -1, np.int32)
    for row, mirror in rows.items():
        found[row, : len(mirror.next_drafts)] = mirror.next_drafts
    return found
