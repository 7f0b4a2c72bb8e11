"""Prompt embeddings (`prompt_embeds`): an input of the step besides its packed plan.

Only steps with such tokens run this variant, which is compiled on first use. On a model that takes
images it is the variant with images (`image_inputs.py`), so one batch may have both.

A request carries embeddings as bytes, which block hashes include; the scheduler only counts tokens.
They replace the embedding lookup, before any scaling.
"""

from __future__ import annotations

import numpy as np

from jengine.plan import Plan
from jengine.runner.plans.packing import PackedStep, chunk_places
from jengine.runner.step.beside import EmbedsInput


class GivenEmbeds:
    """Holds the given embeddings of each row until it gets another request."""

    in_every_step = False

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden
        self._given: dict[int, np.ndarray] = {}  # row -> f32[prompt, hidden]

    def take(self, plan: Plan) -> bool:
        """Store embeddings of the plan's new rows. Returns whether its prefill runs any of them."""
        for row in plan.released:
            self._given.pop(row, None)
        for new in plan.new_rows:
            self._given.pop(new.row, None)
            if new.embeds is not None:
                given = np.frombuffer(new.embeds, np.float32)
                self._given[new.row] = given.reshape(-1, self._hidden)
        rows, starts = plan.entries.columns[:2, plan.num_decodes :].tolist()
        return any(
            start < len(self._given.get(row, ())) for row, start in zip(rows, starts, strict=True)
        )

    def beside(self, plan: Plan, packed: PackedStep) -> EmbedsInput:
        """The embeddings of the step's tokens, and which tokens have one."""
        tokens = packed.bucket.num_tokens
        rows, mask = np.zeros((tokens, self._hidden), np.float32), np.zeros(tokens, bool)
        for row, start, places in chunk_places(plan, packed):
            if (given := self._given.get(row)) is not None:
                own = given[start : start + len(places)]
                rows[places[: len(own)]], mask[places[: len(own)]] = own, True
        return EmbedsInput(rows, mask)
