"""Writes the sampler's state of new rows with penalties, biases or masks on the device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jengine.plan import NewRow
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.state_writer import StateWriter
from jengine.runner.step.state import StepState
from jengine.sampling import Admission, admit, pack_admission


class RowAdmission:
    """A small compiled program that overwrites one row of the sampler's state."""

    def __init__(self, compiler: StepCompiler, vocab_size: int) -> None:
        self._max_len = compiler.shapes.max_model_len
        self._vocab_size = vocab_size
        self._write = StateWriter(compiler, admit, compiler.state.rows)

    def warm_up(self, state: StepState) -> StepState:
        """Compile the program and run it once, with an empty admission."""
        nothing = pack_admission([], 0, vocab=self._vocab_size, max_len=self._max_len)
        return self._placed(state, 0, nothing)

    def admit(self, state: StepState, new_rows: Iterable[NewRow]) -> StepState:
        """Admit new rows that have sampler state. Returns the updated state."""
        for new in new_rows:
            if new.sampler_row:
                state = self._placed(state, new.sampler_row - 1, self._packed(new))
        return state

    def _packed(self, new: NewRow) -> Admission:
        sampling = new.sampling
        return pack_admission(
            # Penalties do not count the placeholder tokens of prompt embeddings.
            new.token_ids if new.embeds is None else new.token_ids[new.prompt_length :],
            new.prompt_length if new.embeds is None else 0,
            vocab=self._vocab_size,
            max_len=self._max_len,
            logit_bias=sampling.logit_bias,
            allowed=sampling.allowed_ids,
            stop=sampling.stop_ids,
            bad_words=sampling.bad_words,
            logprob_ids=sampling.logprob_ids,
        )

    def _placed(self, state: StepState, row: int, admission: Admission) -> StepState:
        return state._replace(rows=self._write(state.rows, np.int32(row), admission))
