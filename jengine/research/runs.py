"""The output of one run of a model: values at tap points, logits and a greedy continuation.

The same classes for torch and for the engine, numpy only. Must not know which of them made a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Continuation:
    """Greedy decoding: the tokens, and the best few logits at every step, best first."""

    tokens: list[int]
    ids: np.ndarray  # i32 [steps, k]
    logits: np.ndarray  # f32 [steps, k]


@dataclass(frozen=True)
class PromptRun:
    """One prompt, all its tokens given (teacher forcing), T positions."""

    points: Mapping[str, np.ndarray]  # tap point -> f32 [T, hidden]
    logits: np.ndarray  # f32 [T, columns]
    normalizer: np.ndarray  # f32 [T], log of the sum of exponentials over the whole vocabulary
    given: np.ndarray  # f32 [T - 1], the logit of the token that follows in the prompt
    top: np.ndarray  # i32 [T, k], the most likely tokens, best first
    continuation: Continuation

    @property
    def given_logprobs(self) -> np.ndarray:
        """log p of each given token but the first, [T - 1]."""
        return self.given.astype(np.float64) - self.normalizer[:-1]


Run = Sequence[PromptRun]


@dataclass(frozen=True)
class ModelFacts:
    """Properties that two runs must share to be comparable."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int


@dataclass(frozen=True)
class Reference:
    """The truth, and the peer that computed in the working dtype, on the same prompts."""

    model: ModelFacts
    dtype: str
    truth_dtype: str
    prompts: list[list[int]]
    new_tokens: int
    # Which logits are kept, for each prompt: ids [T, columns], or None for the whole vocabulary.
    columns: list[np.ndarray | None]
    truth: Run
    working: Run
    software: Mapping[str, str]
