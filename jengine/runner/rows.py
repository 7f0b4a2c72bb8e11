"""The host's mirror of every row: tokens, block tables, sampling settings. Built from plans alone.

Indexed by row, never by position in a batch. Must not know requests or the device.
"""

from __future__ import annotations

import numpy as np

from jengine.plan import NewBlocks, NewRow, Plan
from jengine.runner.buckets import StepShapes
from jengine.runner.step_input import ENDINGS
from jengine.sampling.admission import seed_words

# SamplingInput's fields that stay the same for as long as a request keeps its row.
SETTINGS: dict[str, type] = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "adjusted": np.int32,
    "repetition": np.float32,
    "presence": np.float32,
    "frequency": np.float32,
    "prompt_length": np.int32,
    "min_position": np.int32,
}


class Rows:
    """Per-row arrays; `apply(plan)` brings them up to date before the plan is packed."""

    def __init__(self, shapes: StepShapes) -> None:
        rows = shapes.max_rows
        # One column more: the token after the last one, for prompt log-probability targets.
        self.tokens = np.zeros((rows, shapes.max_model_len + 1), np.int32)
        self.tables = [np.zeros((rows, shapes.max_pages), np.int32) for _ in shapes.groups]
        self.settings = {name: np.zeros(rows, kind) for name, kind in SETTINGS.items()}
        self.seeds = np.zeros((rows, 2), np.uint32)
        self.endings = np.zeros((rows, ENDINGS), np.int32)
        # 0: not wanted; otherwise 1 + k, and -1 for the whole vocabulary.
        self.logprobs = np.zeros(rows, np.int32)
        self.prompt_logprobs = np.zeros(rows, np.int32)
        self.taps = np.zeros(rows, np.int32)  # ids of tap sets; 0: none

    def apply(self, plan: Plan) -> None:
        """Take in the rows and blocks that the plan adds."""
        for new in plan.new_rows:
            self._start(new)
        for blocks in plan.new_blocks:
            self._extend(blocks)

    def _start(self, new: NewRow) -> None:
        row, sampling = new.row, new.sampling
        self.tokens[row, : len(new.token_ids)] = new.token_ids
        self.seeds[row] = seed_words(sampling.seed)
        values = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "adjusted": new.sampler_row,
            "repetition": sampling.repetition_penalty,
            "presence": sampling.presence_penalty,
            "frequency": sampling.frequency_penalty,
            "prompt_length": new.prompt_length,
            "min_position": new.prompt_length + sampling.min_tokens,
        }
        for name, value in values.items():
            self.settings[name][row] = value
        endings = sampling.stop_ids[:ENDINGS]
        self.endings[row] = endings + [-1] * (ENDINGS - len(endings))
        self.logprobs[row] = wanted_columns(sampling.logprobs)
        self.prompt_logprobs[row] = wanted_columns(sampling.prompt_logprobs)
        self.taps[row] = new.taps

    def _extend(self, new: NewBlocks) -> None:
        end = new.first + len(new.blocks)
        self.tables[new.group][new.row, new.first : end] = new.blocks


def wanted_columns(count: int | None) -> int:
    """None -> 0, k -> 1 + k, -1 (the whole vocabulary) -> -1."""
    if count is None:
        return 0
    return -1 if count < 0 else count + 1
