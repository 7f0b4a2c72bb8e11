"""Prompt embeddings: rows of a prompt given by the user go into the step beside its packed input.

Only steps with such tokens run this variant, which is compiled on first use.

A request carries its rows as bytes, which block hashes include; the scheduler only counts tokens.
The model takes the rows in place of its embedding lookup, before any scale.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jengine.plan import Plan
from jengine.runner.plans.packing import PackedStep
from jengine.runner.step.forward import EmbedsInput


class Chunk(NamedTuple):
    """The tokens of one prefill chunk whose embeddings were given."""

    first: int  # among the tokens of all chunks
    rows: np.ndarray  # f32[tokens, hidden]


class GivenEmbeds:
    """Holds the given embeddings of each row until it gets another request."""

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden
        self._given: dict[int, np.ndarray] = {}  # row -> f32[prompt, hidden]

    def take(self, plan: Plan) -> bool:
        """Note the plan's new rows; returns whether some of its tokens have given embeddings."""
        for row in plan.released:
            self._given.pop(row, None)
        for new in plan.new_rows:
            self._given.pop(new.row, None)
            if new.embeds is not None:
                given = np.frombuffer(new.embeds, np.float32)
                self._given[new.row] = given.reshape(-1, self._hidden)
        return bool(self._chunks(plan))

    def _chunks(self, plan: Plan) -> list[Chunk]:
        """The chunks of the plan with given embeddings."""
        found, first = list[Chunk](), 0
        for row, start, length, _ in plan.entries.columns.T[plan.num_decodes :].tolist():
            given = self._given.get(row)
            if given is not None and start < len(given):
                found.append(Chunk(first, given[start : start + length]))
            first += length
        return found

    def beside(self, plan: Plan, packed: PackedStep) -> np.ndarray | EmbedsInput:
        """The packed plan, with the embeddings of its tokens."""
        chunks = self._chunks(plan)
        if not chunks:
            return packed.buffer
        tokens = packed.bucket.num_tokens
        rows, mask = np.zeros((tokens, self._hidden), np.float32), np.zeros(tokens, bool)
        for first, given in chunks:
            places = packed.chunk_base + packed.chunk_tokens[first : first + len(given)]
            rows[places], mask[places] = given, True
        return EmbedsInput(packed.buffer, rows, mask)
