"""Hidden states of a step: what its heads read."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax import Array

from jengine.models.context import Mixer
from jengine.runner.step.batch import Batch
from jengine.runner.step.step_input import HeadInput
from jengine.sampling import SamplingInput
from jengine.sampling.acceptance import Drafted


class Hidden(NamedTuple):
    """The hidden states of a step, and which of them each head reads."""

    model: Any
    ends: Array  # [S, hidden] at the sampling slots
    prompts: Array  # [T, hidden] at the prefill tokens
    heads: HeadInput
    sampling: SamplingInput  # with every position known
    drafts: Drafted | None = None


class Ran(NamedTuple):
    """All tokens that a step ran: D decode rows, then T prefill tokens."""

    tokens: Array  # i32[D + T]
    hidden: Array  # f32[D + T, hidden] after the last norm
    batch: Batch
    token_rows: Array  # i32[D + T] the query tile of each token
    mixer: Mixer  # attention among them and what the cache holds
