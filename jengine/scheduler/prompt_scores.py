"""Log-probabilities of a prompt's tokens, gathered chunk by chunk and delivered once, complete.

In: the scores of each chunk with its first position. Out: one StepLogprobs for the whole prompt.
Kept by position, so chunks that run again after a preemption only repeat what is there.
"""

from __future__ import annotations

import numpy as np

from jengine.outputs import StepLogprobs


class PromptScores:
    """Item i of the result scores prompt token i + 1; the first token has no score.

    `count` is how many of the likeliest tokens to keep; -1: all.
    """

    def __init__(self, prompt_length: int, count: int) -> None:
        self._length = prompt_length - 1
        self._count = count
        self._scored = np.zeros(self._length, bool)
        self._scores: StepLogprobs | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every prompt token but the first has its score."""
        return bool(self._scored.all())

    def add(self, start: int, chunk: StepLogprobs) -> None:
        """Keep the scores of the tokens that follow those from position `start` on, as far as
        they are prompt."""
        end = min(start + len(chunk.rank), self._length)
        if end <= start:
            return
        chunk = chunk.cut(0, end - start).top(self._count)
        if self._scores is None:
            self._scores = _blank_like(chunk, self._length)
        for kept, new in zip(self._scores, chunk, strict=True):
            kept[start:end] = new
        self._scored[start:end] = True

    def result(self) -> StepLogprobs:
        """The scores of the whole prompt; only once complete."""
        assert self.is_complete, (
            f"prompt tokens without a score: {np.flatnonzero(~self._scored) + 1}"
        )
        if self._scores is None:  # a prompt of one token
            nothing = StepLogprobs(
                np.zeros((1, 1), "f4"), np.zeros((1, 1), "i4"), np.zeros(1, "i4")
            )
            return _blank_like(nothing, 0)
        return self._scores


def _blank_like(chunk: StepLogprobs, length: int) -> StepLogprobs:
    return StepLogprobs(*(np.zeros((length, *part.shape[1:]), part.dtype) for part in chunk))
