"""Encodes a plan's images before its step, and maps tokens to their embeddings and rotary
positions.

A step whose prefill chunks belong to no prompt with images runs the variant without them. In a
pipeline only the plan that enters takes embeddings, and its rotary positions travel with it from
stage to stage, so later plans may overwrite the embeddings at once.
"""

from __future__ import annotations

import jax
import numpy as np

from jengine.media_spans import MediaSpan, mrope_positions, offset_after
from jengine.plan import NewRow, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep, chunk_places
from jengine.runner.programs.encoders import Encoders
from jengine.runner.step.beside import ImagesInput


class Images:
    """Holds the images of each row until it gets another request."""

    in_every_step = False

    def __init__(self, loaded: LoadedModel, encoders: Encoders) -> None:
        self._loaded = loaded
        self._encoders = encoders
        self._spans: dict[int, list[MediaSpan]] = {}  # by row
        self._offsets = np.zeros(loaded.shapes.max_rows, np.int32)

    def take(self, plan: Plan) -> bool:
        """Encode the plan's images and note its new rows. Returns whether the step reads
        images."""
        self._encoders.encode(self._loaded.leaves, plan.encode)
        for row in plan.released:
            self._spans.pop(row, None)
        self._start(plan.new_rows)
        return any(row in self._spans for row in plan.entries.rows[plan.num_decodes :].tolist())

    def _start(self, new_rows: list[NewRow]) -> None:
        """Store the images of new rows, and the mrope offset of the tokens after them."""
        changed = False
        for new in new_rows:
            self._spans.pop(new.row, None)
            if new.media:
                self._spans[new.row] = new.media
            offset = offset_after(new.media)
            changed |= bool(offset or self._offsets[new.row])
            self._offsets[new.row] = offset
        state = self._loaded.state
        if changed and state.offsets is not None:
            given = jax.device_put(self._offsets.copy(), state.offsets.sharding)
            self._loaded.state = state._replace(offsets=given)

    def beside(self, plan: Plan, packed: PackedStep) -> ImagesInput:
        """The encoder's array, the row of it that each token takes, and rotary positions."""
        tokens = packed.bucket.num_tokens
        index, positions = np.full(tokens, -1, np.int32), np.full((3, tokens), -1, np.int32)
        ahead = np.zeros(tokens, np.int32)
        for row, start, places in chunk_places(plan, packed):
            if (spans := self._spans.get(row)) is not None:
                index[places], ahead[places] = self._embeddings(spans, start, len(places))
                positions[:, places] = mrope_positions(spans, start + len(places))[:, start:]
        return ImagesInput(self._encoders.rows, index, positions, ahead)

    def _embeddings(
        self, spans: list[MediaSpan], start: int, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Per token, i32[length]: the row of its embedding in the encoder's array, -1 for text; and
        the number of later tokens of its image that it attends to."""
        found, end = np.full(length, -1, np.int32), start + length
        ahead = np.zeros(length, np.int32)
        for span in spans:
            first, last = max(span.offset, start), min(span.end, end)
            if first < last:
                inside = slice(first - span.offset, last - span.offset)
                found[first - start : last - start] = span.places[inside]
                if span.is_whole:
                    ahead[first - start : last - start] = span.end - 1 - np.arange(first, last)
        return found, ahead
