"""Hidden states of a step: what its heads read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import Array

from jengine.models.context import Mixer
from jengine.models.language_model import LanguageModel
from jengine.runner.step.adapters import HeadAdapters
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
    adapters: HeadAdapters | None = None  # of the output head
    batch: Batch | None = None
    token_adapters: Array | None = None  # i32[D + T] the adapter slot of each token

    @property
    def end_logits(self) -> Array:
        """f32 [S, vocab]."""
        return logits_of(self.model, self.ends, None, self.adapters, self.end_adapters)

    @property
    def end_adapters(self) -> Array | None:
        """i32[S] the adapter slots of the sampling slots."""
        return None if self.token_adapters is None else self.token_adapters[self.heads.logit_index]


def logits_of(
    model: Any,
    rows: Array,
    live: Array | None,
    adapters: HeadAdapters | None = None,
    slots: Array | None = None,
) -> Array:
    """f32 [rows, vocab]: logits of these hidden states, whose adapters are in these slots. Rows
    where `live` is -1 may be left out."""
    if adapters is not None and slots is not None:
        return model.adapted_logits(rows, live, adapters.added(rows, slots))
    if live is None or not isinstance(model, LanguageModel):
        return model.logits(rows)
    return model.live_logits(rows, live)


class Ran(NamedTuple):
    """All tokens that a step ran: D decode rows, then T prefill tokens."""

    tokens: Array  # i32[D + T]
    hidden: Array  # f32[D + T, hidden] after the last norm
    batch: Batch
    token_rows: Array  # i32[D + T] the query tile of each token
    mixer: Mixer  # attention among them and what the cache holds
    kept: Mapping[str, Array]  # tap point -> f32[D + T, hidden], those that the guesser reads
