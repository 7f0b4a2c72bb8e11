"""The host's per-row arrays: tokens, sampling settings and, if plans carry them, block tables.

Built from plans alone. Indexed by row, never by position in a batch. Must not know requests or the
device.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from jengine.plan import NewBlocks, NewRow, Plan
from jengine.runner.variants.buckets import ENDINGS, StepShapes
from jengine.sampling.inputs import ROW_SETTINGS, RowSetting


def wanted_columns(count: int | None) -> int:
    """Encode a requested number of log-probabilities: None -> 0, k -> 1 + k, -1 (whole vocabulary)
    -> -1."""
    if count is None:
        return 0
    return -1 if count < 0 else count + 1


def ending_ids(new: NewRow) -> list[int]:
    """The row's first stop token ids, padded with -1."""
    endings = new.sampling.stop_ids[:ENDINGS]
    return endings + [-1] * (ENDINGS - len(endings))


# The sampler's settings, and those that choose programs and the results to read.
SETTINGS: dict[str, RowSetting] = {
    **ROW_SETTINGS,
    # See `wanted_columns`. Ids to score have their own columns, so they need no top k.
    "logprobs": RowSetting(
        "int32",
        lambda new: wanted_columns(0 if new.sampling.logprob_ids else new.sampling.logprobs),
    ),
    "own_ids": RowSetting("int32", lambda new: len(new.sampling.logprob_ids)),
    "prompt_logprobs": RowSetting(
        "int32", lambda new: wanted_columns(new.sampling.prompt_logprobs)
    ),
    "endings": RowSetting("int32", ending_ids, (ENDINGS,)),
    "taps": RowSetting("int32", attrgetter("taps")),  # ids of tap sets; 0: none
    "adapter": RowSetting("int32", attrgetter("adapter_slot")),  # 0: none
}


class Rows:
    """Per-row arrays. Call `apply(plan)` before packing a plan."""

    def __init__(self, shapes: StepShapes) -> None:
        self.shapes = shapes
        rows = shapes.max_rows
        # One extra column: the target after the last token, for prompt log-probabilities.
        self.tokens = np.zeros((rows, shapes.max_model_len + 1), np.int32)
        self.settings: dict[str, np.ndarray[Any, Any]] = {
            name: np.zeros((rows, *setting.width), setting.dtype)
            for name, setting in SETTINGS.items()
        }
        # Rows that the last plan started, whose lengths are not on the device yet.
        self.started: list[int] = []
        self.tables = (
            [np.zeros((rows, shapes.max_pages), np.int32) for _ in shapes.groups]
            if shapes.packed_tables
            else []
        )

    def apply(self, plan: Plan) -> None:
        self.started = [new.row for new in plan.new_rows]
        for new in plan.new_rows:
            self._start(new)
        for known in plan.known:
            end = known.start + len(known.token_ids)
            self.tokens[known.row, known.start : end] = known.token_ids
        if self.tables:
            for blocks in plan.new_blocks:
                self._extend(blocks)

    def _start(self, new: NewRow) -> None:
        tokens = np.frombuffer(new.tokens, np.int32)
        self.tokens[new.row, : len(tokens)] = tokens
        for name, setting in SETTINGS.items():
            self.settings[name][new.row] = setting.source(new)

    def _extend(self, new: NewBlocks) -> None:
        end = new.first + len(new.blocks)
        self.tables[new.group][new.row, new.first : end] = new.blocks
